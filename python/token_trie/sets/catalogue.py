"""`Catalogue`: a set in a file that changes while it is in use."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

import numpy as np
import numpy.typing as npt

from token_trie.errors import ArgumentError, PayloadError, VocabularyError
from token_trie.native.arguments import encode_names
from token_trie.native.core import _core
from token_trie.sets.stored import save_image
from token_trie.sets.tokens import Tokens
from token_trie.sets.trie import TokenTrie

SUFFIX = ".changes"
"""How the name of the file of changes ends, behind that of the set."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS changes (id INTEGER PRIMARY KEY, tokens BLOB NOT NULL UNIQUE, name TEXT)",
    # Of the base that the changes are to; of the next one too, while it is written.
    "CREATE TABLE IF NOT EXISTS bases (digest BLOB PRIMARY KEY)",
)
_PUT = "INSERT OR REPLACE INTO changes (tokens, name) VALUES (?, ?)"
_PUT_BASE = "INSERT OR IGNORE INTO bases (digest) VALUES (?)"


class Catalogue:
    """A set in a file, the base, with members that were added and removed later, which are in a file beside it.

    `trie` is the current set. It is immutable: a caller that holds an older set can continue to use it. A change copies
    nothing of the base. Its time grows with the number of changes since the last `compact`, and it reads one byte for
    each member. A change is on disk when its call returns. If the process or the machine stops, each change is either
    complete or absent. While `compact` writes, the file is the old base or the new base, with the same members.

    Any thread may call any method. Changes wait for each other; reads wait for nothing. Only one `Catalogue` on the
    machine may have a file open. It is a context manager that closes the file.

    Parameters
    ----------
    path : str or os.PathLike
        A set that `TokenTrie.save` or ``token-trie build`` wrote. Changes are kept beside it, in ``<path>.changes``, an
        SQLite database of the last change to each token sequence. A symbolic link stands for the file it leads to.
    verify : bool, optional
        As of `TokenTrie.open`.

    Raises
    ------
    ArgumentError
        A file cannot be opened, or is open as a catalogue elsewhere.
    PayloadError
        A file has another format or is damaged, or the changes belong to another base, because the file was replaced.

    Examples
    --------
    >>> catalogue = Catalogue("items.trie")                                    # doctest: +SKIP
    >>> catalogue.remove(["sold out"])                                         # doctest: +SKIP
    >>> catalogue.add(TokenTrie.from_choices(llm, ["new here"]))               # doctest: +SKIP
    >>> token_trie.choose(llm, prompt, catalogue.trie)                         # doctest: +SKIP
    """

    def __init__(self, path: str | os.PathLike[str], *, verify: bool = False) -> None:
        self.path = os.path.realpath(os.fspath(path))
        self._lock = threading.Lock()
        TokenTrie.open(self.path, verify=verify)  # where there is none, no file of changes is made
        with self._database_errors():
            self._changes = sqlite3.connect(self.path + SUFFIX, timeout=0, check_same_thread=False)
        try:
            with self._database_errors():
                self._changes.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._changes.execute("PRAGMA synchronous = FULL")
                with self._changes:
                    self._changes.execute("BEGIN IMMEDIATE")
                    for table in _SCHEMA:
                        self._changes.execute(table)
                    # From here on no other changes the file.
                    self._base = TokenTrie.open(self.path).core
                    digest = _core.trie_digest(self.path)
                    rows = self._changes.execute("SELECT tokens, name FROM changes ORDER BY id").fetchall()
                    if rows and not self._is_base(digest):
                        raise PayloadError(
                            f"{self.path}{SUFFIX}: changes to another base than {self.path} is now; delete them, or "
                            "put that base back"
                        )
                    self._changes.execute("DELETE FROM bases")
                    self._changes.execute(_PUT_BASE, [digest])
            self._state = _State.of(self._base, rows, self.path + SUFFIX)
            self._trie = self._state.trie()
        except BaseException:
            self._changes.close()
            raise

    @property
    def trie(self) -> TokenTrie:
        """The current set."""
        return self._trie

    @property
    def n_changes(self) -> int:
        """Token sequences added or removed since the base was written."""
        return self._state.n_changes

    def add(self, members: TokenTrie | Mapping[str, Tokens]) -> None:
        """Add members after all existing ones.

        If the token sequence is a member already, it is not added again; with another name, it moves after all others.
        Names need not be unique. To give an item other tokens, remove it first.

        Parameters
        ----------
        members : TokenTrie, or mapping of names to token sequences
            A set made by any builder, such as `TokenTrie.from_choices` or `TokenTrie.from_arrays`.

        Raises
        ------
        ArgumentError
            The members have ``tokenization="any"``, a sequence has two names, or the changes cannot be written.
        PayloadError, VocabularyError, LimitError
            A sequence is empty or not valid; the members were tokenized for another vocabulary, which is known if both
            sets have a fingerprint; or a token id is too large for a file.
        """
        given = members if isinstance(members, TokenTrie) else TokenTrie.from_sequences(members)
        if given.tokenization == "any":
            raise ArgumentError("members: of any tokenization, where token sequences belong")
        for alias, name in given.aliases.items():
            raise ArgumentError(f"members: {alias!r} and {name!r} have the same tokens; give one of them")
        rows = [(np.asarray(leaf.tokens, np.int32).tobytes(), leaf.name) for leaf in given]
        with self._lock:
            theirs, ours = given.core.vocab, self._base.vocab
            if theirs and ours and theirs != ours:
                raise VocabularyError("members: made for another vocabulary than the catalogue's")
            state = self._state.copy()
            self._put([row for row in rows if state.add(*row)], state)

    def remove(self, names: Iterable[str], *, missing_ok: bool = False) -> None:
        """Remove all members with these names or aliases. This reads all names once.

        Raises
        ------
        ArgumentError
            There is no member with a name (unless missing_ok), no member would be left, or the changes cannot be
            written. Nothing is removed then.
        """
        given = [name.decode() for name in encode_names(names, "names")]
        with self._lock:
            found = self._trie.core.leaves_named(given)
            unknown = set(range(len(given))).difference(i for i, _ in found)
            if unknown and not missing_ok:
                i = min(unknown)
                raise ArgumentError(f"names[{i}]: {given[i]!r} is no member of the set")
            state = self._state.copy()
            gone = [self._trie.core.sequence(leaf).tobytes() for leaf in sorted({leaf for _, leaf in found})]
            for tokens in gone:
                state.remove(tokens)
            self._put([(tokens, None) for tokens in gone], state)

    def compact(self) -> None:
        """Write the current set as a new base, and delete the list of changes. Readers can continue in the meantime.

        Raises
        ------
        ArgumentError
            The file cannot be written, or somebody else has replaced it. Nothing has changed.
        """
        with self._lock, self._database_errors():
            if not self._is_base(_core.trie_digest(self.path)):
                raise ArgumentError(f"{self.path}: replaced since it was opened; close the catalogue and open it anew")
            image = _core.TrieImage(self._trie.core)
            with self._changes:
                self._changes.execute(_PUT_BASE, [image.digest])
            save_image(image, self.path)
            # Stopped here, the changes are in the new base as well, and change nothing of it.
            base = TokenTrie.open(self.path).core
            with self._changes:
                self._changes.execute("DELETE FROM changes")
                self._changes.execute("DELETE FROM bases WHERE digest != ?", [image.digest])
            self._base, self._state = base, _State.of(base, [], self.path)
            self._trie = self._state.trie()

    def close(self) -> None:
        """Close the file, so that another catalogue can open it. Sets that `trie` returned stay valid."""
        with self._lock:
            self._changes.close()

    def _is_base(self, digest: bytes) -> bool:
        found = self._changes.execute("SELECT 1 FROM bases WHERE digest = ?", [digest])
        return found.fetchone() is not None

    def _put(self, rows: Sequence[tuple[bytes, str | None]], state: _State) -> None:
        if not rows:
            return
        trie = state.trie()
        with self._database_errors(), self._changes:
            self._changes.executemany(_PUT, rows)
        self._state, self._trie = state, trie

    @contextmanager
    def _database_errors(self) -> Iterator[None]:
        file = self.path + SUFFIX
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise ArgumentError("the catalogue is closed") from error
        except sqlite3.OperationalError as error:
            told = "open as a catalogue elsewhere" if "locked" in str(error) else error
            raise ArgumentError(f"{file}: {told}") from error
        except sqlite3.DatabaseError as error:
            raise PayloadError(f"{file}: {error}") from error

    def __enter__(self) -> Catalogue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Catalogue: {self.path}, {len(self._trie):,} members, {self.n_changes:,} changes>"


class _State:
    """What is changed: which leaves of the base are kept, and by their tokens, the names of those behind them."""

    def __init__(
        self, base: _core.Trie, keep: npt.NDArray[np.bool_], more: dict[bytes, str], removed: set[bytes]
    ) -> None:
        self._base, self._keep, self._more, self._removed = base, keep, more, removed

    @classmethod
    def of(cls, base: _core.Trie, rows: Sequence[tuple[bytes, str | None]], file: str) -> _State:
        state = cls(base, np.ones(base.n_leaves, np.bool_), {}, set())
        for tokens, name in rows:
            is_sound = isinstance(tokens, bytes) and len(tokens) % 4 == 0 and tokens
            if not is_sound or not (name is None or isinstance(name, str)):
                raise PayloadError(f"{file}: a change that is none")
            if name is None:
                state.remove(tokens)
            else:
                state.add(tokens, name)
        return state

    def copy(self) -> _State:
        return _State(self._base, self._keep.copy(), dict(self._more), set(self._removed))

    @property
    def n_changes(self) -> int:
        return len(self._more) + len(self._removed)

    def add(self, tokens: bytes, name: str) -> bool:
        """Add a member, and return whether it was none before."""
        leaf = self._leaf(tokens)
        is_base = leaf is not None and self._base.name(leaf) == name
        if self._more.get(tokens) == name or (is_base and self._keep[leaf]):
            return False
        self._removed.discard(tokens)
        self._more.pop(tokens, None)
        if leaf is not None:
            self._keep[leaf] = is_base  # as it was before it was removed
        if not is_base:
            self._more[tokens] = name
        return True

    def remove(self, tokens: bytes) -> None:
        leaf = self._leaf(tokens)
        if leaf is not None:
            self._keep[leaf] = False
        self._more.pop(tokens, None)
        self._removed.add(tokens)

    def trie(self) -> TokenTrie:
        """Return the set; ArgumentError if nothing is left."""
        if self._more:
            lengths = np.fromiter(map(len, self._more), np.int64, len(self._more)) // 4
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            tokens = np.frombuffer(b"".join(self._more), np.int32)
            more = _core.Trie.build(tokens, offsets, list(self._more.values()), self._base.vocab)
            return TokenTrie.of_core(self._base.joined(more, self._keep))
        return TokenTrie.of_core(self._base if self._keep.all() else self._base.filtered(self._keep))

    def _leaf(self, tokens: bytes) -> int | None:
        node = self._base.descend(np.frombuffer(tokens, np.int32))
        return None if node is None else self._base.leaf(node)
