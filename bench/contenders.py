"""Contenders of the modes sampler and mask: each engine, called as its users call it.

A contender is made for a model (its setup), and then gives, for a set of answers, what it can be timed on:

    build   from the text of the set to something that constrains a sequence, nothing cached
    hit     the same text again, where the engine has a cache
    fill    the bit mask of the tokens allowed next
    apply   the constraint's effect on the logits or candidates
    mask    fill and apply together
    cold    the same, from empty caches, as a forward pass leaves them
    step    a whole sampling step: mask, llama.cpp's own fill of the candidate array, choice of a token
"""

import ctypes
import re
import weakref
from collections.abc import Callable
from functools import cache, partial
from itertools import count
from typing import Any, Literal

import llama_cpp
import numpy as np
from token_trie.native.core import vocab_of
from token_trie.native.ffi import ffi, lib, new_struct, set_of

from bench import native
from bench.models import Model
from bench.sets import Answers
from bench.timing import Measure, Samples, repeated, timed

Pointer = Any  # a ctypes pointer to llama_sampler; false where it is NULL
GREEDY, SAMPLED = 0, 1


class Owned:
    """A llama_sampler that is freed with the Python object."""

    def __init__(self, pointer: Pointer) -> None:
        if not pointer:
            raise ValueError("llama.cpp refused to make the sampler")
        self.pointer = pointer
        weakref.finalize(self, llama_cpp.llama_sampler_free, pointer)


def chain(*members: Pointer) -> Owned:
    """Return a chain of new samplers, which owns them from now on."""
    out = Owned(llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params()))
    for member in members:
        llama_cpp.llama_sampler_chain_add(out.pointer, member)
    return out


def greedy_sampler(trie: Any) -> Owned:
    """Return a sampler of a `TokenTrie`, without a vocabulary."""
    params = new_struct("token_trie_params", mode=GREEDY)
    made = lib.llama_sampler_init_token_trie_set(ffi.NULL, set_of(trie.core), params)  # which keeps the set
    return Owned(_pointer_of(made))


def _pointer_of(sampler: Any) -> Pointer:
    return ctypes.cast(int(ffi.cast("uintptr_t", sampler)), llama_cpp.llama_sampler_p_ctypes)


def alternatives(names: list[str]) -> str:
    r"""Return the grammar of a set of names, in the dialect that GBNF and xgrammar share."""

    def literal(text: str) -> str:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        # With four digits: after \x0A, xgrammar would read the next characters as digits.
        return '"' + "".join(f"\\u{ord(c):04X}" if ord(c) < 32 else c for c in escaped) + '"'

    return "root ::= " + " | ".join(map(literal, names))


class Unconstrained:
    """A chain of llama_sampler_init_greedy alone: the step that every other one is compared with."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def measures(self, answers: Answers) -> dict[str, Measure]:
        """Return `step`, whatever the set."""
        greedy = chain(llama_cpp.llama_sampler_init_greedy())
        return {"step": lambda n: {"step": native.step(greedy.pointer, self._model, n)}}


class _Sampler:
    """A sampler of llama.cpp that subclasses make of a text: `_text(answers)` and `_init(text)`."""

    _text: Callable[..., bytes]
    _init: Callable[[bytes], Pointer]

    def __init__(self, model: Model) -> None:
        self.model = model

    def _last(self) -> Pointer:
        return llama_cpp.llama_sampler_init_greedy()

    def measures(self, answers: Answers) -> dict[str, Measure]:
        """Return all but `fill`: there is no mask."""
        text = self._text(answers)
        sampler, steps = Owned(self._init(text)), chain(self._init(text), self._last())

        def apply(n: int, *, cold: bool = False) -> Samples:
            return native.apply(sampler.pointer, self.model.logits, n, answers.paths, cold=cold)

        return {
            "build": lambda n: {"build": np.array([self._timed_init(text) for _ in range(n)])},
            "apply": lambda n: dict.fromkeys(("apply", "mask"), apply(n)),
            "cold": lambda n: {"cold": apply(n, cold=True)},
            "step": lambda n: {"step": native.step(steps.pointer, self.model, n)},
        }

    def _timed_init(self, text: bytes) -> int:
        elapsed, sampler = timed(lambda: self._init(text))
        llama_cpp.llama_sampler_free(sampler)
        return elapsed


class Gbnf(_Sampler):
    """llama_sampler_init_grammar, first in the chain, where llama-cpp-python puts it."""

    def _text(self, answers: Answers) -> bytes:
        return alternatives(answers.names).encode()

    def _init(self, text: bytes) -> Pointer:
        return llama_cpp.llama_sampler_init_grammar(self.model.vocab, text, b"root")


class TokenTrie(_Sampler):
    """llama_sampler_init_token_trie, in one of its modes."""

    def __init__(self, model: Model, mode: int) -> None:
        super().__init__(model)
        self._mode, self._nonces = mode, count(1)
        self._timed_init(self._text(Answers("", ["a"], [[1]])))  # prepares the vocabulary

    def _text(self, answers: Answers, nonce: int = 0) -> bytes:
        return answers.payload(nonce)

    def _init(self, text: bytes) -> Pointer:
        vocab = ffi.cast("struct llama_vocab *", ctypes.cast(self.model.vocab, ctypes.c_void_p).value)
        sampler = _pointer_of(lib.llama_sampler_init_token_trie(vocab, text, self._mode))
        if not sampler:
            raise ValueError(ffi.string(lib.token_trie_last_error()).decode())
        return sampler

    def _last(self) -> Pointer:
        return super()._last() if self._mode == GREEDY else llama_cpp.llama_sampler_init_dist(0)

    def measures(self, answers: Answers) -> dict[str, Measure]:
        """Return the quantities of a sampler, and `hit`."""
        text = self._text(answers)

        def cold() -> int:
            lib.token_trie_cache_clear()
            return self._timed_init(self._text(answers, next(self._nonces)))

        def hit(n: int) -> dict[str, Samples]:
            self._timed_init(text)
            return {"hit": np.array([self._timed_init(text) for _ in range(n)])}

        build: Measure = lambda n: {"build": np.array([cold() for _ in range(n)])}  # noqa: E731
        return super().measures(answers) | {"build": build, "hit": hit}


def single_threaded_torch() -> Any:
    """Return torch, set to one thread.

    On one row of logits more threads gain little where cores are free, lose much where they are not, and would spin on
    into the turn of the next contender.
    """
    import torch

    torch.set_num_threads(1)
    return torch


class _Masks:
    """An engine whose subclass fills a bit mask and applies it, called from Python; llama.cpp then samples greedily."""

    text: Callable[[Answers], str]
    build: Callable[[str], Any]
    _fill: Callable[[Any], object]
    _apply: Callable[[], object]

    def __init__(self, model: Model) -> None:
        self._model = model
        self._greedy = chain(llama_cpp.llama_sampler_init_greedy())

    def measures(self, answers: Answers) -> dict[str, Measure]:
        """Return `build`, the quantities of one step, and `cold`."""
        text = self.text(answers)
        matcher = self.build(text)

        def once(evict: bool) -> tuple[int, int, int]:
            matcher.reset()
            if evict:
                native.evict()
            self._model.live_logits[:] = self._model.logits
            fill, apply = timed(lambda: self._fill(matcher))[0], timed(self._apply)[0]
            rest = 0 if evict else int(native.step(self._greedy.pointer, self._model, 1)[0])
            self._model.live_logits[:] = self._model.logits
            return fill, apply, rest

        def step(n: int) -> dict[str, Samples]:
            fill, apply, rest = np.array([once(False) for _ in range(n)]).T
            return {"fill": fill, "apply": apply, "mask": fill + apply, "step": fill + apply + rest}

        def cold(n: int) -> dict[str, Samples]:
            return {"cold": np.array([sum(once(True)) for _ in range(n)])}

        return {"build": repeated("build", lambda: self.build(text)), "step": step, "cold": cold}


@cache
def llguidance_tokenizer(model: Model) -> Any:
    """Return llguidance's tokenizer, by its own bridge to llama.cpp."""
    from llguidance.llamacpp import lltokenizer_from_vocab

    return lltokenizer_from_vocab(model.vocab)


class LLGuidance(_Masks):
    """A regular expression of alternatives, its fastest form for a set of plain texts.

    Its "choice" form takes up to twice as long to build. A JSON schema's enum builds faster, but is another language:
    the answers come in quotes. Two functions of the package apply a mask: the one on numpy arrays and, for those who
    have torch and a C++ compiler, the one that torch.compile makes.
    """

    def __init__(self, model: Model, apply: Literal["numpy", "torch"]) -> None:
        super().__init__(model)
        import llguidance.numpy as with_numpy

        self._tokenizer = llguidance_tokenizer(model)
        mask = with_numpy.allocate_token_bitmask(1, model.n_vocab)
        self._fill = lambda matcher: with_numpy.fill_next_token_bitmask(matcher, mask)
        self._apply = partial(with_numpy.apply_token_bitmask_inplace, model.live_logits, mask)
        if apply == "torch":
            import llguidance.torch as with_torch

            tensor = single_threaded_torch().from_numpy
            arguments = tensor(model.live_logits), tensor(mask)
            self._apply = partial(with_torch.apply_token_bitmask_inplace, *arguments)
        self._apply()  # compiles what is compiled on first use

    def text(self, answers: Answers) -> str:
        """Return the alternatives."""
        return "|".join(map(re.escape, answers.names))

    def build(self, text: str) -> Any:
        """Return a matcher."""
        from llguidance import LLMatcher

        # llguidance reports a grammar that it could not build by a flag.
        matcher = LLMatcher(self._tokenizer, LLMatcher.grammar_from_regex(text))
        if matcher.is_error():
            raise RuntimeError(matcher.get_error())
        return matcher


@cache
def _compiler(model: Model) -> Any:
    import xgrammar

    info = xgrammar.TokenizerInfo(
        model.pieces(),
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=model.n_vocab,
        stop_token_ids=list(vocab_of(model.llm).end_of_generation()),
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


class XGrammar(_Masks):
    """EBNF alternatives over raw token bytes, its fastest form for a set: a regular expression or an enum takes longer.

    backend "cpu" is what the package chooses for logits in main memory, "torch_compile" what is fastest there for those
    who have a C++ compiler. One thread compiles, since on sets like these its default of eight takes longer.
    """

    def __init__(self, model: Model, backend: Literal["cpu", "torch_compile"]) -> None:
        super().__init__(model)
        import xgrammar

        self._xgrammar, self._compiler = xgrammar, _compiler(model)
        mask = xgrammar.allocate_token_bitmask(1, model.n_vocab)
        logits = single_threaded_torch().from_numpy(model.live_logits).unsqueeze(0)
        self._fill = lambda matcher: matcher.fill_next_token_bitmask(mask)
        self._apply = partial(xgrammar.apply_token_bitmask_inplace, logits, mask, backend=backend)
        self._apply()  # compiles what is compiled on first use

    def text(self, answers: Answers) -> str:
        """Return the grammar."""
        return alternatives(answers.names)

    def build(self, text: str) -> Any:
        """Return a matcher."""
        return self._xgrammar.GrammarMatcher(self._compiler.compile_grammar(text))


FREE = "unconstrained"
OURS: dict[str, Callable[[Model], Any]] = {
    "token-trie": partial(TokenTrie, mode=GREEDY),
    "token-trie (sampled)": partial(TokenTrie, mode=SAMPLED),
}
PEERS: dict[str, Callable[[Model], Any]] = {
    "GBNF": Gbnf,
    "llguidance": partial(LLGuidance, apply="numpy"),
    "llguidance (torch.compile)": partial(LLGuidance, apply="torch"),
    "xgrammar": partial(XGrammar, backend="cpu"),
    "xgrammar (torch.compile)": partial(XGrammar, backend="torch_compile"),
}
ALL = {**OURS, FREE: Unconstrained, **PEERS}
