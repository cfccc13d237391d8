"""`TokenTrie`: the set of answers."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, VocabularyError
from token_trie.native.arguments import encode, encode_names
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.ffi import set_of
from token_trie.native.lease import attachment, lease
from token_trie.sets.choices import ChoicesLike, read_choices
from token_trie.sets.memory import Memory
from token_trie.sets.payload import json_of, named_leaves, payload_of, payload_of_texts
from token_trie.sets.pickled import View, made_of, view_of
from token_trie.sets.prompt import Prompt, tokenize_prompt
from token_trie.sets.spelling import Tokenization, check_tokenization, find_seam, following, spell, take_back
from token_trie.sets.stored import Stored
from token_trie.sets.subset import Subsets
from token_trie.sets.tokens import Tokens, joined, to_tokens

_SETS_KEPT, _TEXTS_KEPT = 32, 500_000
"""The most sets of texts that are kept for a model, and the most texts in them."""


class Leaf(NamedTuple):
    """One member of the set."""

    name: str
    tokens: tuple[int, ...]
    """Its sequence; with ``tokenization="any"``, one of the shortest."""


class TokenTrie(Subsets, Stored, Collection[Leaf]):
    """An immutable set of token sequences, each with a name, as a prefix tree.

    Make one with `from_choices`, `from_sequences`, `from_payload`, `from_arrays`, `from_prefix_dict` or `open`. Leaves
    (members) keep the order in which they were given. Leaves without tokens are skipped. Leaves with equal tokens
    become one leaf, with the smallest name, at the position of the first; `aliases` has the other names. Tries may be
    shared between threads, and between models with the same vocabulary.

    ``len(trie)`` is the number of leaves; iteration yields `Leaf`; ``trie[i]`` is leaf ``i``; ``"READ" in trie`` looks
    for a name and ``[7, 8] in trie`` for a token sequence. In a `filtered` set, only the remaining leaves count; they
    keep their indices.
    """

    __slots__ = ("_c_sets", "_names", "_start", "core")

    core: _core.Trie
    """The native set, for the package's own use."""
    _names: frozenset[str] | None
    _c_sets: dict[str, Any]
    _start: int | None

    def __init__(self) -> None:
        raise TypeError("a TokenTrie is made with from_choices or another of its from_ methods")

    @classmethod
    def of_core(cls, core: _core.Trie, start_token: int | None = None) -> TokenTrie:
        """Wrap a native set, for the package's own use."""
        trie = object.__new__(cls)
        trie.core, trie._start = core, start_token
        trie._names, trie._c_sets = None, {}
        return trie

    @classmethod
    def from_choices(
        cls,
        llm: Llama,
        choices: ChoicesLike,
        *,
        prompt: Prompt | None = None,
        leading_space: bool | None = None,
        tokenization: Tokenization = "canonical",
    ) -> TokenTrie:
        """Build the set from texts, tokenized as they will follow the prompt.

        Parameters
        ----------
        llm : llama_cpp.Llama
            The model whose tokenizer is used. The set keeps the fingerprint of its vocabulary, and cannot be used with
            another vocabulary.
        choices : iterable of str, mapping of str to any value, Enum class, range, or Literal
            The answers, as for `choose`; the names of the leaves are their texts.
        prompt : str, sequence of int or of chat messages, optional
            What the answers will follow. Without a prompt, they are tokenized as at the start of an answer, which is
            right after the usual chat template.
        leading_space : bool, optional
            Whether there is a space between prompt and answer. By default, there is one where written text has one: for
            example after a word or ``:``, but not after a line break, an opening bracket, or a control token of a chat
            template.
        tokenization : {"canonical", "any"}
            "canonical": the tokens that the tokenizer makes of a choice; models are trained on these. "any": all tokens
            that spell it. The set is then a graph instead of a tree; a step costs the same.

        Raises
        ------
        VocabularyError
            A choice cannot be spelled. Or, with "canonical", the prompt ends in a token that merges with the choices,
            such as a trailing space; `choose` handles this case by itself.
        ArgumentError
            There are no choices, or one is empty.
        """
        check_tokenization(tokenization)
        read = read_choices(choices)
        with lease(llm):
            vocab = vocab_of(llm)
            tokens = [] if prompt is None else tokenize_prompt(llm, prompt)
            fitted = fit(vocab, attachment(llm).known, tokens, read.texts, leading_space, tokenization)
        if fitted.n_moved:
            raise VocabularyError(
                "the prompt's last tokens merge with the choices. Let the prompt end earlier (often: without its "
                "trailing space, which then belongs to the choices), or use choose(), which moves the seam by itself"
            )
        return fitted.trie

    @classmethod
    def from_sequences(cls, sequences: Mapping[str, Tokens]) -> TokenTrie:
        """Build the set from names and their token sequences.

        Raises
        ------
        PayloadError
            No sequence with tokens, or a negative token.
        ArgumentError
            A name is not text, or a token not an integer below 2**31.
        """
        if not isinstance(sequences, Mapping):
            raise ArgumentError(f"sequences: {type(sequences).__name__} where a dict belongs")
        names = list(sequences)
        for name in names:
            encode(name, f"sequences[{name!r}]")
        rows = [to_tokens(tokens, f"sequences[{name!r}]") for name, tokens in sequences.items()]
        return cls.of_core(_core.Trie.build(*joined(rows), names, ""))

    @classmethod
    def from_payload(
        cls, payload: str | bytes | Mapping[str, Any], path: str | None = None, *, llm: Llama | None = None
    ) -> TokenTrie:
        """Read the set from a TokenTreePayload: JSON text, or the same as a dict.

        Parameters
        ----------
        payload : str, bytes or dict
            ``{"modelId": str, "descriptors": [{"path": str, "leaves": [{"name": str, "tokens": [int, ...]}]}]}``.
            The trie comes from a process-wide cache of the last 128 tries, keyed by SHA-256 of the text.
        path : str, optional
            Use only the descriptors with this path. By default, all descriptors form one set.
        llm : llama_cpp.Llama, optional
            If given, the tokens are checked against its vocabulary. It is required for descriptors with
            ``"tokenization": "any"``, whose leaves have a ``"text"``.

        Raises
        ------
        PayloadError, LimitError
            With a message that begins with the place, such as ``descriptors[0].leaves[3].tokens[1]``.
        VocabularyError
            A text cannot be spelled, or there is no model to spell it with.
        """
        if llm is None:
            return cls.read_payload(payload, path, None)
        with lease(llm):
            return cls.read_payload(payload, path, vocab_of(llm))

    @classmethod
    def read_payload(
        cls, payload: str | bytes | Mapping[str, Any], path: str | None, vocab: _core.Vocab | None
    ) -> TokenTrie:
        """Read the set from a payload, for a vocabulary or for none; see `from_payload`."""
        named = None if path is None else encode(path, "path").decode()
        return cls.of_core(_core.cached_trie(json_of(payload), named, vocab))

    @classmethod
    def from_arrays(
        cls,
        tokens: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        names: Sequence[str] | None = None,
    ) -> TokenTrie:
        """Build the set from flat arrays; this is the fastest way for large sets.

        Parameters
        ----------
        tokens : ndarray of int32, shape (n_tokens,)
            All sequences, one after the other. Do not write to the array during the call.
        offsets : ndarray of int64, shape (n_leaves + 1,)
            Leaf ``i`` is ``tokens[offsets[i]:offsets[i + 1]]``.
        names : sequence of str, optional
            One name for each leaf; by default its position, ``"0"``, ``"1"``, …

        Raises
        ------
        ArgumentError
            Arrays of another shape or of no integer type, or offsets that do not ascend from 0 to ``len(tokens)``.
        PayloadError
            No leaf with tokens, or a negative token.
        """
        flat = to_tokens(tokens, "tokens")
        ends = np.asarray(offsets)
        if ends.ndim != 1 or ends.dtype.kind not in "iu":
            raise ArgumentError(f"offsets: dtype {ends.dtype}, shape {ends.shape}, not integers in one dimension")
        if names is not None:
            names = [name.decode() for name in encode_names(names, "names")]
            if len(names) != len(ends) - 1:
                raise ArgumentError(f"names: {len(names)} for {len(ends) - 1} leaves")
        return cls.of_core(
            _core.Trie.build(flat, ends.astype(np.int64, copy=False), [] if names is None else names, "")
        )

    def __copy__(self) -> TokenTrie:
        return self

    def __deepcopy__(self, memo: object) -> TokenTrie:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.tokenization == "any":
            raise ArgumentError(
                "a trie of any tokenization belongs to a loaded vocabulary and cannot be pickled; "
                "take payload() along, and from_payload(…, llm=llm) at the other end"
            )
        if self.core.is_view:  # whose members keep their indices
            return _of_view, (view_of(self.core), self._start)
        return TokenTrie.from_payload, (self.payload(),), (None, {"_start": self._start})

    def __len__(self) -> int:
        return self.core.n_members

    def __iter__(self) -> Iterator[Leaf]:
        tokens, offsets = self.core.arrays()
        for i in self._leaves():
            yield Leaf(self.core.name(i), tuple(tokens[offsets[i] : offsets[i + 1]].tolist()))

    def __getitem__(self, index: int) -> Leaf:
        n = self.core.n_leaves
        if not -n <= index < n:
            raise IndexError(f"leaf {index} of {n}")
        index %= n
        if not self.core.has_leaf(index):
            raise IndexError(f"leaf {index} is filtered out")
        return Leaf(self.core.name(index), tuple(self.core.sequence(index).tolist()))

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            if self._names is None:
                self._names = frozenset(self.names)
            return item in self._names
        name, tokens = (item.name, item.tokens) if isinstance(item, Leaf) else (None, item)
        try:
            node = self.core.descend(to_tokens(tokens, "item"))
        except ArgumentError:
            return False
        leaf = None if node is None else self.core.leaf(node)
        return leaf is not None and name in (None, self.core.name(leaf))

    def children(self, prefix: Tokens = ()) -> npt.NDArray[np.int32]:
        """Return the tokens that may follow a prefix, ascending; empty if none can, or if no leaf has this prefix.

        Parameters
        ----------
        prefix : sequence of int
            Tokens from the start; by default none.

        Returns
        -------
        ndarray of int32, shape (n_children,)
        """
        node = self.core.descend(to_tokens(prefix, "prefix"))
        return np.empty(0, np.int32) if node is None else self.core.children(node)

    def payload(self, model_id: str = "", path: str = "") -> str:
        """Return the set, with its aliases, as TokenTreePayload JSON for `from_payload`, C and other hosts.

        With ``tokenization="any"`` it holds the texts, and fits any model.
        """
        encode(model_id, "model_id"), encode(path, "path")
        return payload_of(self.core.kept_alone(), model_id, path)

    def _leaves_of(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the leaf of each name that the trie was built of."""
        if len(names) == self.core.n_leaves:
            return np.arange(len(names))
        leaf_of = dict(named_leaves(self.core))
        return np.array([leaf_of[name] for name in names], np.int64)

    def _leaves(self) -> Iterator[int]:
        return (i for i in range(self.core.n_leaves) if self.core.has_leaf(i))

    @property
    def c_set(self) -> Any:
        """The set itself for the C ABI: a cffi ``struct token_trie_set *``, valid as long as the trie."""
        # One for all threads: another that took its place would free it in the middle of somebody's call.
        return self._c_sets.get("") or self._c_sets.setdefault("", set_of(self.core))

    @property
    def tokenization(self) -> Tokenization:
        """Whether a member is one token sequence ("canonical") or any that spells its text ("any")."""
        return "canonical" if self.core.is_tree else "any"

    @property
    def nbytes(self) -> int:
        """Memory held, names included, in bytes."""
        return self.core.total_bytes

    @property
    def names(self) -> list[str]:
        """Names of all leaves, in order."""
        return [self.core.name(i) for i in self._leaves()]

    @property
    def vocab(self) -> str:
        """Fingerprint of the vocabulary the tokens were made with, ``""`` if unknown."""
        return self.core.vocab

    @property
    def aliases(self) -> dict[str, str]:
        """Names that were given to equal token sequences, each with the name that the leaf has."""
        return {name: self.core.name(leaf) for name, leaf in self.core.aliases if self.core.has_leaf(leaf)}

    @property
    def n_nodes(self) -> int:
        """Nodes of the tree or graph, the root included."""
        return self.core.n_nodes

    @property
    def start_token(self) -> int | None:
        """Token with which prompts have to end, for a set from `from_prefix_dict`; otherwise None."""
        return self._start

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest leaf; with ``tokenization="any"``, of the longest spelling of one."""
        return self.core.max_length

    def __repr__(self) -> str:
        shown = [self.core.name(i) for i in itertools.islice(self._leaves(), 3)]
        dots = ", …" if len(self) > len(shown) else ""
        leaves = "1 leaf" if len(self) == 1 else f"{len(self):,} leaves"
        return f"<TokenTrie: {leaves}, {self.n_nodes:,} nodes: {', '.join(map(repr, shown))}{dots}>"


def _of_view(view: View, start_token: int | None) -> TokenTrie:
    return TokenTrie.of_core(made_of(view), start_token)


class FittedSet(NamedTuple):
    """A set of texts behind a prompt."""

    trie: TokenTrie
    leaf_of: npt.NDArray[np.int64]
    """Leaf of each text; equal ones have one."""
    n_moved: int
    """Tokens at the prompt's end that it loses, as the members begin with their text."""


def fit(
    vocab: _core.Vocab,
    known: dict[object, Any],
    prompt: list[int],
    texts: tuple[str, ...],
    leading_space: bool | None = None,
    tokenization: Tokenization = "canonical",
    heal: bool = False,
) -> FittedSet:
    """Build the set of texts as they follow a prompt; the last sets of a model are kept in what is known of it."""
    taken, n_taken = take_back(vocab, prompt) if heal else ("", 0)
    if n_taken and leading_space is None:
        leading_space = False  # as the prompt may end inside a word
    seam = find_seam(vocab, prompt, leading_space)
    memory: Memory[FittedSet] = known.setdefault("sets", Memory(_SETS_KEPT, _TEXTS_KEPT))
    is_whole = len(seam.tail) == len(prompt)
    key = texts, seam, leading_space, tokenization, is_whole, taken, n_taken

    def make() -> FittedSet:
        all_spaced = leading_space is True
        if tokenization == "any":
            spelled = [taken + text.decode() for text in following(seam, texts, all_spaced=all_spaced)]
            core, n_moved = _core.cached_trie(payload_of_texts(texts, spelled).encode(), None, vocab), n_taken
        else:
            spelling = spell(vocab, seam, texts, all_spaced=all_spaced, is_whole=is_whole)
            core = _core.Trie.build(spelling.tokens, spelling.offsets, list(texts), vocab.fingerprint())
            n_moved = spelling.n_moved
        trie = TokenTrie.of_core(core)
        return FittedSet(trie, trie._leaves_of(texts), n_moved)

    return memory.get(key, len(texts), make)
