"""Random sets, and random spellings of their members, compared with other engines."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import llama_cpp
import numpy as np
from numpy.typing import NDArray
from token_trie import TokenTrie, constrain

from bench.contenders.llguidance import LLGuidance
from bench.contenders.xgrammar import XGrammar
from bench.models import Model
from bench.sets import Answers

_MOST_MEMBERS, _MOST_FRAGMENTS, _MOST_STEPS = 12, 5, 40
_CHARACTERS = "aZ09 _-\n\"\\'<>&éßñÅΩ中文字かな한글€…–😀🏳️‍🌈👩‍🚀𝒳"

_Mask = NDArray[np.bool_]


@dataclass
class Compared:
    """How many steps were the same."""

    model: str
    engine: str
    cases: int = 0
    steps: int = 0
    different: int = 0
    """Steps at which the two do not allow the same."""
    wrong: int = 0
    """Of these, steps at which ours is not what the definition says: a token may come if the text so far and its bytes
    are the beginning of a member, an end if the text so far is one."""
    first_difference: str = ""


class _Engine(Protocol):
    """Another engine; `apart` has the tokens that it treats in its own way by design, which are not compared."""

    apart: list[int]

    def begin(self, texts: list[str]) -> None: ...
    def allowed(self) -> _Mask: ...
    def accept(self, token: int) -> None: ...


class _LLGuidance:
    """llguidance, told not to force the canonical tokens where the text leaves no choice.

    Its bridge to llama.cpp takes user-defined tokens such as <table> for control tokens; GBNF does not.
    """

    def __init__(self, model: Model) -> None:
        self._contender = LLGuidance(model, apply="numpy")
        self._n_vocab = model.n_vocab
        self.apart = [
            token
            for token, piece in enumerate(model.pieces())
            if piece.startswith(b"<")
            and piece.endswith(b">")
            and llama_cpp.llama_vocab_get_attr(model.vocab, token) & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        ]

    def begin(self, texts: list[str]) -> None:
        members = " | ".join(json.dumps(text) for text in texts)
        self._matcher = self._contender.build_lark(f'%llguidance {{"no_forcing": true}}\nstart: T\nT: {members}')

    def allowed(self) -> _Mask:
        self._contender.fill(self._matcher)
        return _to_bools(self._contender.mask, self._n_vocab)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)


class _XGrammar:
    def __init__(self, model: Model) -> None:
        self._contender = XGrammar(model, backend="cpu")
        self._n_vocab = model.n_vocab
        self.apart: list[int] = []

    def begin(self, texts: list[str]) -> None:
        self._matcher = self._contender.build(self._contender.text(Answers("", texts, [])))

    def allowed(self) -> _Mask:
        self._contender.fill(self._matcher)
        return _to_bools(self._contender.mask.numpy(), self._n_vocab)

    def accept(self, token: int) -> None:
        self._matcher.accept_token(token)


_ENGINES: dict[str, Callable[[Model], _Engine]] = {"llguidance": _LLGuidance, "xgrammar": _XGrammar}


def compare(model: Model, n: int, advance: Callable[[], object]) -> list[Compared]:
    """Go through n random sets at random, and compare the allowed tokens at every step."""
    rng = np.random.default_rng(0)
    engines = {name: make(model) for name, make in _ENGINES.items()}
    out = {name: Compared(model.name, name) for name in engines}
    pieces = model.pieces(special=False)
    fragments = [text for piece in pieces if (text := _text(piece))]
    ends = model.end_tokens()
    apart = [token for engine in engines.values() for token in engine.apart]
    for _ in range(n):
        texts = _random_texts(rng, fragments)
        trie = TokenTrie.from_choices(model.llm, texts, leading_space=False, tokenization="any")
        cursor = constrain(model.llm, trie).new_cursor()
        members = {text.encode() for text in texts}
        so_far = b""
        for engine in engines.values():
            engine.begin(texts)
        for compared in out.values():
            compared.cases += 1
        for _ in range(_MOST_STEPS):
            ours = cursor.mask(model.n_vocab)
            may_end = ours[ends].any()
            ours[ends] = False
            for name, engine in engines.items():
                theirs = engine.allowed()
                differs = theirs[ends].any() != may_end
                theirs[ends] = False
                unlike = ours != theirs
                unlike[engine.apart] = False
                out[name].steps += 1
                if differs or unlike.any():
                    tokens = np.flatnonzero(unlike).tolist()
                    right = may_end == (so_far in members) and all(
                        ours[t] == (pieces[t] != b"" and any(m.startswith(so_far + pieces[t]) for m in members))
                        for t in tokens
                    )
                    out[name].different += 1
                    out[name].wrong += not right
                    out[name].first_difference = out[name].first_difference or (
                        f"after {so_far!r}, tokens {tokens[:9]}, of {texts}"
                    )
            ours[apart] = False
            tokens = np.flatnonzero(ours)
            if not len(tokens):
                break
            token = int(rng.choice(tokens))
            so_far += pieces[token]
            cursor.accept(token)
            for engine in engines.values():
                engine.accept(token)
        advance()
    return list(out.values())


def _random_texts(rng: np.random.Generator, fragments: list[str]) -> list[str]:
    """Return texts of whole tokens and of single characters, some of them the beginnings of others."""
    texts: list[str] = []
    for _ in range(int(rng.integers(1, _MOST_MEMBERS + 1))):
        text = _one_of(rng, texts) if texts and rng.random() < 0.3 else ""
        for _ in range(int(rng.integers(1, _MOST_FRAGMENTS + 1))):
            text += _one_of(rng, fragments if rng.random() < 0.7 else _CHARACTERS)
        texts.append(text)
    return list(dict.fromkeys(texts))


def _one_of(rng: np.random.Generator, texts: Sequence[str]) -> str:
    return texts[int(rng.integers(len(texts)))]


def _text(piece: bytes) -> str:
    try:
        return piece.decode().replace("\0", "")
    except UnicodeDecodeError:
        return ""


def _to_bools(mask: NDArray[np.int32], n: int) -> _Mask:
    return np.unpackbits(mask.reshape(-1).view(np.uint8), bitorder="little")[:n].astype(np.bool_)
