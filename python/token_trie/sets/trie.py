"""`TokenTrie`: the set of answers, with its files, subsets and pickles."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, VocabularyError
from token_trie.native.core import Llama, _core, vocab_of
from token_trie.native.ffi import set_of
from token_trie.native.files import write_whole
from token_trie.native.lifetime import attachment, cache_in
from token_trie.native.options import encode, encode_names
from token_trie.sets.choices import ChoicesLike, read_choices
from token_trie.sets.payload import json_of, named_leaves, payload_of, read_prefix_dict
from token_trie.sets.prompt import Prompt, tokenize_prompt
from token_trie.sets.tokenization import Tokens, find_seam, joined, spell, to_tokens

TokenIds = npt.NDArray[np.int32]


class Leaf(NamedTuple):
    """One member of the set."""

    name: str
    tokens: tuple[int, ...]


class TokenTrie(Collection[Leaf]):
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
    """The native set, for use inside the package."""
    _names: frozenset[str] | None
    _c_sets: dict[str, Any]
    _start: int | None

    def __init__(self) -> None:
        raise TypeError("a TokenTrie is made with from_choices or another of its from_ methods")

    @classmethod
    def of_core(cls, core: _core.Trie, start_token: int | None = None) -> TokenTrie:
        """Wrap a native set, for use inside the package."""
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

        Raises
        ------
        VocabularyError
            A choice cannot be spelled, or the prompt ends in a token that merges with the choices, such as a trailing
            space; `choose` handles this case by itself.
        ArgumentError
            There are no choices, or one is empty.
        """
        read = read_choices(choices)
        vocab = vocab_of(llm)
        tokens = [] if prompt is None else tokenize_prompt(llm, prompt)
        trie, _, n_moved = fit(vocab, attachment(llm).known, tokens, read.texts, leading_space)
        if n_moved:
            raise VocabularyError(
                "the prompt's last tokens merge with the choices. Let the prompt end earlier (often: without its "
                "trailing space, which then belongs to the choices), or use choose(), which moves the seam by itself"
            )
        return trie

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
            raise ArgumentError(f"sequences must be a dict, not {type(sequences).__name__}")
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
            If given, the tokens are checked against its vocabulary.

        Raises
        ------
        PayloadError, LimitError
            With a message that begins with the place, such as ``descriptors[0].leaves[3].tokens[1]``.
        VocabularyError
            A token is outside the vocabulary.
        """
        if llm is None:
            return cls.read_payload(payload, path, None)
        return cls.read_payload(payload, path, vocab_of(llm))

    @classmethod
    def read_payload(
        cls, payload: str | bytes | Mapping[str, Any], path: str | None, vocab: _core.Vocab | None
    ) -> TokenTrie:
        """Read the set from a payload, for a vocabulary or None; see `from_payload`."""
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

    @classmethod
    def from_prefix_dict(cls, given: str | os.PathLike[str] | Mapping[str, Any]) -> TokenTrie:
        """Read the set from RTP-LLM's tree decode configuration.

        Members are named by their position, ``"0"``, ``"1"``, …, in the order of their tokens. The set remembers its
        start token: `constrain`, `choose` and `TrieMatcher` refuse a prompt that does not end in it. In RTP-LLM the end
        token ends an answer; give it as ``end_tokens``.

        Parameters
        ----------
        given : dict, str or os.PathLike
            The configuration, or the path of a file that holds it as JSON. Start token, end token and separator are
            225, 2 and ``"_"`` by default. Ids in lists that are negative or have more than 32 bits are skipped with a
            warning, and so are keys that no other key leads to.

        Raises
        ------
        ArgumentError
            The file cannot be read.
        PayloadError
            A wrong type, with its place such as ``prefix_dict["225_7"][1]``; broken JSON; no key for the start token;
            an answer that can end before it begins; a separator that does not separate token ids.

        Notes
        -----
        In ``{"start_token_id": 225, "end_token_id": 2, "sep": "_", "prefix_dict": {"225": [7, 9], "225_7": [2, 8]}}``,
        a key spells the start token and a prefix, and its list has the tokens that may follow. A prefix is a member if
        it has no key, or if its list is empty or holds the end token: here ``[9]``, ``[7, 8]`` and ``[7]``.
        """
        return cls.of_core(*read_prefix_dict(given))

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = False) -> TokenTrie:
        """Open a set that `save` wrote.

        The file is mapped read-only, and shared by all processes that have it open. This takes milliseconds for a file
        of any size. An open file may be replaced (as `save` does) or deleted, but must not be written into.

        Parameters
        ----------
        path : str or os.PathLike
        verify : bool, optional
            Whether to compare the checksums, which reads the whole file. Otherwise, a damaged file can give wrong
            answers, but no call reads outside of it.

        Raises
        ------
        ArgumentError
            The file cannot be opened.
        PayloadError
            The file is not a set, is truncated, has another version, or is damaged.
        """
        file = os.fsencode(path)
        if verify:
            _core.verify_trie(file)
        return cls.of_core(_core.open_trie(file))

    def __copy__(self) -> TokenTrie:
        return self

    def __deepcopy__(self, memo: object) -> TokenTrie:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.core.n_members < self.core.n_leaves:  # the members that are left keep their indices
            core = self.core
            names = [core.name(leaf) for leaf in range(core.n_leaves)]
            return _of_view, (*core.arrays(), names, core.aliases, np.packbits(core.left()), core.vocab, self._start)
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
        """Return the set, with its aliases, as TokenTreePayload JSON for `from_payload`, C and other hosts."""
        encode(model_id, "model_id"), encode(path, "path")
        return payload_of(self.core.kept_alone(), model_id, path)

    def only(self, names: Iterable[str]) -> TokenTrie:
        """Build a set of some of the members, in the same order, for the same vocabulary.

        Parameters
        ----------
        names : iterable of str
            Names, or `aliases`, of members.

        Raises
        ------
        ArgumentError
            There is no member with a name, or no member is left.
        """
        return self.of_core(_subset(self.core, names, keep=True), self._start)

    def without(self, names: Iterable[str]) -> TokenTrie:
        """Build a set without some of the members; everything else is as in `only`."""
        return self.of_core(_subset(self.core, names, keep=False), self._start)

    def rows(self, names: Sequence[str], *, missing_ok: bool = False) -> npt.NDArray[np.int64]:
        """Return the leaf of each row of the table that the set was built from; rows with equal tokens share one.

        Parameters
        ----------
        names : sequence of str, length n_rows
            The rows' values of the column that named the leaves: names or `aliases`.
        missing_ok : bool, optional
            Whether a row may have no leaf, such as one without tokens; it gets -1.

        Returns
        -------
        ndarray of int64, shape (n_rows,)

        Raises
        ------
        ArgumentError
            A name belongs to no leaf (unless missing_ok), or to several.
        """
        found = leaves_named(self.core, names, missing_ok)
        rows = np.full(len(names), -1, np.int64)
        for i, leaf in found:
            if rows[i] not in (-1, leaf):
                raise ArgumentError(f"names[{i}]: {names[i]!r} is the name of several members")
            rows[i] = leaf
        return rows

    def filtered(self, mask: npt.ArrayLike, *, rows: npt.NDArray[np.int64] | None = None) -> TokenTrie:
        """Return a set of some of the members without building it: for example those that are in stock.

        Members keep their indices and names, so an answer's index is still an index into the original data. Only the
        mask is copied, as one bit for each member. The children that remain at a node are found when they are needed,
        and are kept with the returned set. Masks can be combined as arrays (``&``, ``|``, ``~``). A filtered set can be
        filtered again. A small set is first converted to the layout of large sets.

        Parameters
        ----------
        mask : array of bool, shape (n,), or of integers
            A boolean for each leaf that the set had when it was made, or the indices of the leaves to keep. It can be
            an Arrow column of booleans without nulls. With `rows`, a boolean for each row.
        rows : ndarray of int64, shape (n_rows,), optional
            The leaf of each row of a table, from `rows`. A leaf remains if the mask is true for one of its rows.

        Raises
        ------
        ArgumentError
            The mask has another length or type, an index does not exist or occurs twice, or no leaf is left.
        """
        n_leaves = self.core.n_leaves
        leaf_of = None if rows is None else np.asarray(rows)
        if leaf_of is not None and not (
            leaf_of.ndim == 1 and leaf_of.dtype.kind in "iu" and ((leaf_of >= -1) & (leaf_of < n_leaves)).all()
        ):
            raise ArgumentError(f"rows must be the result of rows(), not {leaf_of.dtype}, shape {leaf_of.shape}")
        n = n_leaves if leaf_of is None else len(leaf_of)
        try:
            given = np.asarray(mask)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"mask: {error}") from error
        if given.ndim == 1 and given.dtype.kind in "iu" and len(given):
            wrong = np.flatnonzero((given < 0) | (given >= n))
            if len(wrong):
                raise ArgumentError(f"mask[{wrong[0]}]: {given[wrong[0]]} is no leaf's index; there are {n:,}")
            keep = np.zeros(n, np.bool_)
            keep[given] = True
            if np.count_nonzero(keep) != len(given):
                raise ArgumentError("mask: an index comes twice; a mask of one number a leaf must be of booleans")
        elif given.shape == (n,) and given.dtype == np.bool_:
            keep = np.ascontiguousarray(given)
        elif given.shape == (0,):
            raise ArgumentError("mask: no member of the set is left")
        else:
            raise ArgumentError(
                f"mask must be bool, shape ({n},), or indices, not {given.dtype}, shape {given.shape}"
                + ("; for a mask of a table's rows, give rows=" if rows is None else "")
            )
        if leaf_of is not None:
            left, keep = leaf_of[keep], np.zeros(n_leaves, np.bool_)
            keep[left[left >= 0]] = True
        return self.of_core(self.core.filtered(keep), self._start)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the set to a file for `open`, with its names and aliases.

        If the process or the machine stops, the file is the old or the new one, never a part. A process that has the
        old file open can continue to use it. The start token of `from_prefix_dict` is not saved.

        Raises
        ------
        ArgumentError
            The file cannot be written.
        """
        image = _core.TrieImage(self.core)
        try:
            write_whole(Path(path), (image.piece(i) for i in range(len(image))))
        except (OSError, ValueError) as error:
            raise ArgumentError(f"path: {error}") from error

    def _leaves(self) -> Iterator[int]:
        return (i for i in range(self.core.n_leaves) if self.core.has_leaf(i))

    @property
    def c_set(self) -> Any:
        """The set itself for the C ABI: a cffi ``struct token_trie_set *``, valid as long as the trie."""
        # The first one is kept, because a replaced one would be freed during another thread's call.
        return self._c_sets.get("") or self._c_sets.setdefault("", set_of(self.core))

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
        """Nodes of the tree, the root included."""
        return self.core.n_nodes

    @property
    def start_token(self) -> int | None:
        """Token with which prompts have to end, for a set from `from_prefix_dict`; otherwise None."""
        return self._start

    @property
    def max_tokens(self) -> int:
        """Tokens of the longest leaf."""
        return self.core.max_length

    def __repr__(self) -> str:
        shown = [self.core.name(i) for i in itertools.islice(self._leaves(), 3)]
        dots = ", …" if len(self) > len(shown) else ""
        leaves = "1 leaf" if len(self) == 1 else f"{len(self):,} leaves"
        return f"<TokenTrie: {leaves}, {self.n_nodes:,} nodes: {', '.join(map(repr, shown))}{dots}>"


_MAX_SETS, _MAX_TEXTS = 32, 500_000
"""Limits of the sets of texts that are kept for a model, and of the texts in them."""


def fit(
    vocab: _core.Vocab,
    known: dict[object, Any],
    prompt: list[int],
    texts: tuple[str, ...],
    leading_space: bool | None = None,
) -> tuple[TokenTrie, npt.NDArray[np.int64], int]:
    """Build the set of texts as they follow a prompt; the last sets of a model are kept in `known`.

    Returns the set, the leaf of each text, and the number of tokens that are removed from the end of the prompt, as the
    members begin with their text. Equal texts have the same leaf.
    """
    seam = find_seam(vocab, prompt, leading_space)
    memory = cache_in(known, "sets", _MAX_SETS, _MAX_TEXTS)
    is_whole = len(seam.tail) == len(prompt)
    key = texts, seam, leading_space, is_whole

    def make() -> tuple[TokenTrie, npt.NDArray[np.int64], int]:
        all_spaced = leading_space is True
        tokens, offsets, n_moved = spell(vocab, seam, texts, all_spaced=all_spaced, is_whole=is_whole)
        trie = TokenTrie.of_core(_core.Trie.build(tokens, offsets, list(texts), vocab.fingerprint()))
        return trie, np.arange(len(trie)) if len(trie) == len(texts) else trie.rows(texts), n_moved

    found: tuple[TokenTrie, npt.NDArray[np.int64], int] = memory.get(key, len(texts), make)
    return found


def leaves_named(core: _core.Trie, names: Iterable[str], missing_ok: bool = False) -> list[tuple[int, int]]:
    """Return positions of names or aliases, each with a leaf of this name; ArgumentError for one without a leaf."""
    given = [name.decode() for name in encode_names(names, "names")]
    found = core.leaves_named(given)
    unknown = set(range(len(given))).difference(i for i, _ in found)
    if unknown and not missing_ok:
        i = min(unknown)
        raise ArgumentError(f"names[{i}]: {given[i]!r} is no member of the set")
    return found


def _subset(trie: _core.Trie, names: Iterable[str], *, keep: bool) -> _core.Trie:
    """Build a trie of the members with these names, or of all others."""
    trie = trie.kept_alone()
    named = {leaf for _, leaf in leaves_named(trie, names)}
    kept = [(name, leaf) for name, leaf in named_leaves(trie) if (leaf in named) == keep]
    if not kept:
        raise ArgumentError("names: no member of the set is left")
    names_kept = [name for name, _ in kept]
    tokens, offsets = trie.arrays()
    rows = [tokens[offsets[leaf] : offsets[leaf + 1]] for _, leaf in kept]
    return _core.Trie.build(*joined(rows), names_kept, trie.vocab)


def _of_view(
    tokens: TokenIds,
    offsets: npt.NDArray[np.int64],
    names: list[str],
    aliases: list[tuple[str, int]],
    left: npt.NDArray[np.uint8],
    vocab: str,
    start_token: int | None,
) -> TokenTrie:
    """Rebuild a filtered set, with one bit of `left` for each leaf, 0 if it is filtered out."""
    rows = [tokens[begin:end] for begin, end in itertools.pairwise(offsets.tolist())]
    # Aliases come after the leaves, so that they become aliases again.
    given = [*rows, *(rows[leaf] for _, leaf in aliases)]
    core = _core.Trie.build(*joined(given), [*names, *(name for name, _ in aliases)], vocab)
    keep = np.unpackbits(left, count=len(rows)).astype(np.bool_)
    return TokenTrie.of_core(core.filtered(keep), start_token)
