"""Spells alternatives: the texts that may be written next, in tokens.

Decided text stays open until the next decision, and is tokenized together with its options:

    sequence          … [Answer] [:] [{"] [city] [":"] [Oslo]
    open text                                                 ","unit":"
    options                                                             C"   F"
    followers                                                                  ,"days":
    tokenized                                                 [","] [unit] [":"] [C] [","] …
                                                              [","] [unit] [":"] [F] [","] …
    forced            the common beginning                    [","] [unit] [":"]
    members           the rest, to the option's end                                [C] [","], [F] [","]
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from token_trie.errors import VocabularyError
from token_trie.llama.contexts import common_prefix
from token_trie.native.core import _core
from token_trie.sets.tokenization import Seam, joined
from token_trie.sets.trie import TokenTrie


@dataclass(frozen=True, eq=False)
class Alternatives:
    """Texts, one of which is written next: first its kind is decided token by token, then the best text of that kind.

    In the modes that go step by step, each text is a kind.
    """

    texts: tuple[str, ...]
    followers: tuple[tuple[str, ...], ...]
    """The possible beginnings of what follows each text; they decide how its last token is spelled."""
    kinds: tuple[Hashable, ...]

    @cached_property
    def parts(self) -> dict[Hashable, tuple[list[int], Alternatives]]:
        """The indices of the texts of each kind, and the alternatives of these."""
        indices: dict[Hashable, list[int]] = {}
        for i, kind in enumerate(self.kinds):
            indices.setdefault(kind, []).append(i)
        if len(indices) == 1:
            return {self.kinds[0]: (indices[self.kinds[0]], self)}
        return {kind: (own, self._of_one_kind(own)) for kind, own in indices.items()}

    def _of_one_kind(self, own: list[int]) -> Alternatives:
        texts, followers = tuple(self.texts[i] for i in own), tuple(self.followers[i] for i in own)
        return Alternatives(texts, followers, ("",) * len(own))


@dataclass(frozen=True, eq=False)
class Spelled:
    """Tokens of the options after open text."""

    vocab: _core.Vocab
    n_back: int
    """Tokens at the end of the sequence that are replaced."""
    forced: list[int]
    """Their replacement, which all options begin with."""
    members: list[list[int]]
    """The remaining tokens; an option may be spelled in several ways."""
    options: list[int]
    """The option of each member."""
    unforced: list[bytes]
    """Text of each option after the forced tokens."""
    tries: dict[tuple[int, ...], TokenTrie] = field(default_factory=dict)
    """The single tokens that may come next, by the tokens after the forced ones."""

    @cached_property
    def trie(self) -> TokenTrie:
        """The members."""
        return self._make_trie(self.members)

    def option_of(self, leaf: int) -> int:
        """Return the option of a leaf of the trie."""
        return self.options[int(self.trie.core.name(leaf))]

    def next_tokens(self, path: tuple[int, ...], tokens: Sequence[int]) -> tuple[TokenTrie, list[int]]:
        """Return the trie of tokens that may come after a path, and the token of each leaf."""
        if path not in self.tries:
            self.tries[path] = self._make_trie([[token] for token in tokens])
        core = self.tries[path].core
        return self.tries[path], [tokens[int(core.name(leaf))] for leaf in range(core.n_leaves)]

    def _make_trie(self, rows: list[list[int]]) -> TokenTrie:
        core = _core.Trie.build(*joined(rows), [str(i) for i in range(len(rows))], self.vocab.fingerprint())
        return TokenTrie.of_core(core)


def signs_before(text: str) -> str:
    """Return a text up to its first letter or digit."""
    return _AFTER_SIGNS.sub("", text)


_AFTER_SIGNS = re.compile(r"\w.*", re.DOTALL)


def spell(vocab: _core.Vocab, seam: Seam, text: bytes, alternatives: Alternatives) -> Spelled:
    """Tokenize the options after open text: to their ends, or up to where their kinds are distinct."""
    texts, kinds = alternatives.texts, alternatives.kinds if len(alternatives.parts) > 1 else ()
    ordered = sorted(texts)
    begun = {a for a, b in pairwise(ordered) if b.startswith(a)}
    options = [
        (i, seam.text + text + option.encode(), after.encode())
        for i, (option, all_after) in enumerate(zip(texts, alternatives.followers, strict=True))
        for after in (_spellings(all_after, option not in begun) if kinds else all_after)
    ]
    tokens, offsets = vocab.tokenize([option + after for _, option, after in options], "record")
    rows = [tokens[offsets[i] : offsets[i + 1]].tolist() for i in range(len(options))]
    whole = rows[0]
    # A closing quote distinguishes a text from longer ones; without longer ones the end is not scored.
    n_apart = [len(option) - (not kinds and _is_alone(texts[i], ordered)) for i, option, _ in options]
    n_needed = [
        _n_covering(vocab, row, len(option) + len(after), n if n < len(option) else n + (bool(begun) and after != b""))
        for row, (_, option, after), n in zip(rows, options, n_apart, strict=True)
    ]
    if kinds:
        n_needed = _n_distinct(
            [row[:n] for row, n in zip(rows, n_needed, strict=True)], [kinds[i] for i, *_ in options]
        )
    n_least = min(n_needed) - (len(texts) > 1)
    cut = [row[:n_least] for row in rows]
    n_same = common_prefix(min(cut), max(cut))  # the first and last in order differ first
    n_tail = common_prefix(whole[:n_same], seam.tail)
    unforced = [b""] * len(texts)
    for (i, option, after), row in zip(options, rows, strict=True):
        rest = vocab.detokenize(row[n_same:])
        if not (option + after).endswith(rest):
            raise VocabularyError(f"record: {texts[i]!r} cannot be spelled in this vocabulary")
        unforced[i] = option[len(option) + len(after) - len(rest) :]
    members = [row[n_same:n] for row, n in zip(rows, n_needed, strict=True)]
    return Spelled(vocab, len(seam.tail) - n_tail, whole[n_tail:n_same], members, [i for i, *_ in options], unforced)


def _spellings(followers: tuple[str, ...], may_end: bool) -> Iterable[str]:
    """Return what the last token of an option may cover: any part of the signs that follow it, or nothing."""
    parts = (each[:n] for each in followers for n in range(not may_end, len(signs_before(each)) + 1))
    return dict.fromkeys((*parts, *followers))


def _is_alone(text: str, ordered: list[str]) -> bool:
    """Return whether a text ends in a quote and its content begins no other of the ordered texts."""
    content = text.removesuffix('"')
    first = bisect_left(ordered, content)
    return content != text and not any(
        other.startswith(content) for other in ordered[first : first + 2] if other != text
    )


def _n_covering(vocab: _core.Vocab, tokens: list[int], n_bytes: int, n_wanted: int) -> int:
    """Count the tokens that cover the first bytes of a text."""
    n = len(tokens)
    while n > 1 and (before := n_bytes - len(vocab.detokenize(tokens[n - 1 : n]))) >= n_wanted:
        n_bytes = before
        n -= 1
    return n


def _n_distinct(rows: list[list[int]], kinds: Sequence[Hashable]) -> list[int]:
    """Return for each row after how many tokens all rows that begin alike are of one kind."""
    found = [0] * len(rows)
    todo = [(0, [*range(len(rows))])]
    while todo:
        n, alike = todo.pop()
        is_distinct = len({kinds[i] for i in alike}) == 1
        after: dict[int, list[int]] = {}
        for i in alike:
            found[i] = n
            if not is_distinct and n < len(rows[i]):
                after.setdefault(rows[i][n], []).append(i)
        todo += [(n + 1, group) for group in after.values()]
    return found
