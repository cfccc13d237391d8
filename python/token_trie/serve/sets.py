"""Sets that requests name, from a folder that is read at start, and filters of their members."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError
from token_trie.native.core import Llama
from token_trie.native.lifetime import LruCache
from token_trie.native.options import encode_names
from token_trie.serve.errors import Place, RefusedError, invalid
from token_trie.sets.choices import Choices, read_choices
from token_trie.sets.trie import TokenTrie

AnySet: TypeAlias = TokenTrie | Choices[Any]

_MAX_FILTERS, _MAX_FILTER_BYTES = 64, 256 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names that an error repeats."""


def read_set(llm: Llama, given: Any) -> AnySet:
    """Read a set from JSON: a payload, texts, or texts with values; TokenTrieError if it is none."""
    if isinstance(given, dict) and "descriptors" in given:
        return TokenTrie.from_payload(given, llm=llm)
    if not isinstance(given, (list, dict)):
        raise ArgumentError(f"must be a list, an object of choices or a payload, not {type(given).__name__}")
    choices = read_choices(given)
    if not all(encode_names(choices.texts, "choices")):
        raise ArgumentError("choices: one is empty")
    return choices


@dataclass(frozen=True, eq=False)
class NamedSet:
    """A set with a name."""

    name: str
    members: AnySet
    has_collapsed: bool = False
    """Whether leaves were merged or dropped, so that the indices after them have shifted."""

    @classmethod
    def read(cls, llm: Llama, path: Path) -> NamedSet:
        """Read a file of JSON or a `.trie` file; OSError, or ArgumentError if it is none."""
        try:
            if path.suffix == ".trie":
                return cls(path.stem, TokenTrie.open(path))
            given = json.loads(path.read_bytes())
            members = read_set(llm, given)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"--sets: {path}: {error}") from error
        n_leaves = len(members)
        if isinstance(members, TokenTrie):
            n_leaves = sum(len(one.get("leaves", ())) for one in given["descriptors"])
        return cls(path.stem, members, len(members) < n_leaves)


class Sets:
    """The sets that requests may name."""

    def __init__(self, sets: Mapping[str, NamedSet] | None = None) -> None:
        self._of_name = dict(sets or {})
        self._filtered: LruCache[AnySet] = LruCache(_MAX_FILTERS, _MAX_FILTER_BYTES)

    @classmethod
    def read(cls, llm: Llama, folder: Path) -> Sets:
        """Read the `.json` and `.trie` files of a folder; OSError or ArgumentError for one that is no set."""
        found: dict[str, NamedSet] = {}
        for path in sorted(folder.iterdir()):
            if path.suffix in (".json", ".trie"):
                if path.stem in found:
                    raise ArgumentError(f"--sets: {path}: there is another set {path.stem!r}")
                found[path.stem] = NamedSet.read(llm, path)
        return cls(found)

    def summaries(self) -> list[dict[str, Any]]:
        """Return name and size of each set, as JSON."""
        return [{"object": "set", "name": name, "choices": len(one.members)} for name, one in self._of_name.items()]

    def __contains__(self, name: str) -> bool:
        return name in self._of_name

    def get(self, name: object, place: Place) -> NamedSet:
        """Return a set by name; RefusedError if there is none."""
        found = self._of_name.get(name) if isinstance(name, str) else None
        if found is None:
            shown = name if isinstance(name, str) and _NAME.fullmatch(name) else "of this name"
            refusal = invalid(f"there is no set {shown}", place, "not_found")
            raise RefusedError("not_found", refusal.message, refusal.faults)
        return found

    def filtered(self, one: NamedSet, mask: object) -> AnySet:
        """Return the members that a request's mask keeps; the last results are cached. ArgumentError if there are none.

        The mask is base64 of one bit per member, the lowest of a byte first, padded with zeros.
        """
        if one.has_collapsed:
            raise ArgumentError(
                "mask: the file of this set has leaves of equal tokens or of none, so that its bits would name other "
                "members"
            )
        if not isinstance(mask, str):
            raise ArgumentError(f"mask must be base64 of bits, not {type(mask).__name__}")
        return self._filtered.get((one.name, mask), len(mask), lambda: _kept(one.members, mask))


def _kept(members: AnySet, mask: str) -> AnySet:
    keep = _bits(mask, len(members))
    if isinstance(members, TokenTrie):
        return members.filtered(keep)
    kept = np.flatnonzero(keep).tolist()
    if not kept:
        raise ArgumentError("mask: no member of the set is left")
    texts = tuple(members.texts[i] for i in kept)
    return Choices(texts, texts if members.are_texts else tuple(members.values[i] for i in kept))


def _bits(mask: str, n: int) -> npt.NDArray[np.bool_]:
    try:
        data = base64.b64decode(mask, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ArgumentError(f"mask: no base64: {error}") from error
    if len(data) != (n + 7) // 8:
        raise ArgumentError(f"mask: {len(data):,} bytes, where {n:,} members take {(n + 7) // 8:,}")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(np.bool_)
    if bits[n:].any():
        raise ArgumentError(f"mask: has bits after the last of {n:,} members")
    return bits[:n]
