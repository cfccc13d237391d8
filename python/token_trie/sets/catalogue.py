"""`Catalogue`: a set in a file that changes while it is in use."""

from __future__ import annotations

import io
import json
import os
import secrets
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from token_trie.errors import ArgumentError, PayloadError, VocabularyError
from token_trie.native.core import _core
from token_trie.native.files import sync_folder
from token_trie.sets.tokenization import Tokens
from token_trie.sets.trie import TokenTrie, leaves_named, save_image

SUFFIX = ".changes"
"""Suffix of the file of changes, after the path of the set."""

# The file of changes: lines of JSON, each with its checksum. A line is written at once, under a lock.
#
#     {"base": "5d1e…", "id": "91b0…", "version": 1} 8c73652b    digest of the base that the following changes apply to
#     {"changes": [["07000000", "new"]]} 0b1c22d4                of a call: tokens of 32 bits, name or null (removed)
#     {"base": "aa37…", "id": "c0de…", "version": 1} 77aa01ff    the base that `compact` writes next, with these changes
#
# It is not SQLite: its locks are lost when the process closes another descriptor of the file, for example to copy it,
# and its connections must not be used after a fork.
_BEGINNING = b'{"base": "'
_VERSION = 1


class Catalogue:
    """A set in a file, the base, with members that were added and removed later, which are in a file beside it.

    `trie` is the current set. It is immutable: a caller that holds an older set can continue to use it. A change copies
    nothing of the base. Its time grows with the number of changes since the last `compact`, and it reads one byte for
    each member. A change is on disk when its call returns. If the process or the machine stops, each change is either
    complete or absent. While `compact` writes, the file is the old base or the new base, with the same members.

    Any thread may call any method, and any number of catalogues, in any processes of the machine, may change the same
    file: changes wait for each other, and each begins with what the others have changed. Reads wait for nothing: `trie`
    has the changes of other catalogues after the next change of this one, or after `refresh`. A forked process can use
    the catalogues of its parent; a pickled catalogue opens the file again. It is a context manager that closes it.

    Parameters
    ----------
    path : str or os.PathLike
        A set that `TokenTrie.save` or ``token-trie build`` wrote. Changes are kept beside it, in ``<path>.changes``,
        which grows with each change until `compact`. A symbolic link is resolved. The file system must be one of
        this machine, because network file systems such as NFS may not keep writers apart.
    verify : bool, optional
        As of `TokenTrie.open`.

    Raises
    ------
    ArgumentError
        A file cannot be opened or locked.
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
        self._is_closed = False
        self._now: _Now | None = None
        TokenTrie.open(self.path, verify=verify)  # if this fails, no file of changes is made
        self.refresh()

    @property
    def trie(self) -> TokenTrie:
        """The current set."""
        return self._read.trie

    @property
    def n_changes(self) -> int:
        """Token sequences added or removed since the base was written."""
        return self._read.state.n_changes

    def refresh(self) -> None:
        """Read what other catalogues have changed in the file.

        Raises
        ------
        ArgumentError, PayloadError
            As when a catalogue is opened. `trie` is as before then.
        """
        with self._exclusively():
            pass

    def add(self, members: TokenTrie | Mapping[str, Tokens]) -> None:
        """Add members after all existing ones, even those that were members before.

        If the token sequence is a member with this name or alias already, nothing changes. If it is one with another
        name, it gets the new name instead of all its names, and moves after all others. Names need not be unique. To
        give an item other tokens, remove it first.

        Parameters
        ----------
        members : TokenTrie, or mapping of names to token sequences
            A set made by any builder, such as `TokenTrie.from_choices` or `TokenTrie.from_arrays`.

        Raises
        ------
        ArgumentError
            A sequence has two names, or the changes cannot be written.
        PayloadError, VocabularyError, LimitError
            A sequence is empty or not valid; the members were tokenized for another vocabulary, which is known if both
            sets have a fingerprint; or a token id is too large for a file.
        """
        given = members if isinstance(members, TokenTrie) else TokenTrie.from_sequences(members)
        for alias, name in given.aliases.items():
            raise ArgumentError(f"members: {alias!r} and {name!r} have the same tokens; give one of them")
        rows = [(np.asarray(leaf.tokens, np.int32).tobytes(), leaf.name) for leaf in given]
        with self._exclusively() as log:
            theirs, ours = given.core.vocab, self._read.state.base.vocab
            if theirs and ours and theirs != ours:
                raise VocabularyError("members: made for another vocabulary than the catalogue's")
            state = self._read.state.copy()
            self._put(log, [row for row in rows if state.add(*row)], state)

    def remove(self, names: Iterable[str], *, missing_ok: bool = False) -> None:
        """Remove all members with these names or aliases. This reads all names once.

        Raises
        ------
        ArgumentError
            There is no member with a name (unless missing_ok), no member would be left, or the changes cannot be
            written. Nothing is removed then.
        """
        with self._exclusively() as log:
            core = self.trie.core
            found = leaves_named(core, names, missing_ok)
            state = self._read.state.copy()
            gone = [core.sequence(leaf).tobytes() for leaf in sorted({leaf for _, leaf in found})]
            for tokens in gone:
                state.remove(tokens)
            self._put(log, [(tokens, None) for tokens in gone], state)

    def compact(self) -> None:
        """Write the current set as a new base, and delete the list of changes. Readers can continue in the meantime.

        Raises
        ------
        ArgumentError
            The file cannot be written. Nothing has changed.
        """
        with self._exclusively() as log:
            image = _core.TrieImage(self.trie.core)
            # If it stops after this line, the changes above apply to the old base only.
            log.append(_base_record(image.digest), self._read.end)
            save_image(image, self.path)
            self._now = self._load(log)

    def close(self) -> None:
        """Refuse further changes. Sets that `trie` returned stay valid."""
        self._is_closed = True

    @property
    def _read(self) -> _Now:
        assert self._now is not None
        return self._now

    @contextmanager
    def _exclusively(self) -> Iterator[_Log]:
        """Exclude other writers, in all threads and processes, and read their changes first."""
        if self._is_closed:
            raise ArgumentError("the catalogue is closed")
        file = self.path + SUFFIX
        try:
            with _locked(file) as descriptor:
                log = _Log(file, descriptor)
                self._now = self._load(log) if self._now is None else self._caught_up(log, self._now)
                yield log
        except OSError as error:
            raise ArgumentError(f"{file}: {error.strerror or error}") from error

    def _load(self, log: _Log) -> _Now:
        digest = _core.trie_digest(self.path)
        base = TokenTrie.open(self.path).core
        records, end = log.read()
        rows: list[Any] = []
        is_its = False
        for record in records:
            if "base" not in record:
                rows += record["changes"]
            elif record["base"] == digest.hex():
                rows, is_its = [], True
        if rows and not is_its:
            raise PayloadError(
                f"{log.path}: changes to another base than {self.path} is now; delete them, or put that base back"
            )
        if not rows and (len(records) != 1 or not is_its):
            record = _base_record(digest)
            records, end = [record], log.append(record, 0)
            sync_folder(Path(self.path).parent)
        state = _State(base)
        state.change(rows, log.path)
        return _Now(digest, records[0], end, state, state.trie())

    def _caught_up(self, log: _Log, now: _Now) -> _Now:
        if log.first() != now.first or log.size() < now.end or _core.trie_digest(self.path) != now.digest:
            return self._load(log)
        records, end = log.read(now.end)
        if any("base" in record for record in records):  # a `compact` did not finish
            return self._load(log)
        if not records:
            return now
        state = now.state.copy()
        state.change([row for record in records for row in record["changes"]], log.path)
        return now._replace(end=end, state=state, trie=state.trie())

    def _put(self, log: _Log, rows: Sequence[tuple[bytes, str | None]], state: _State) -> None:
        if not rows:
            return
        trie = state.trie()
        end = log.append({"changes": [[tokens.hex(), name] for tokens, name in rows]}, self._read.end)
        self._now = self._read._replace(end=end, state=state, trie=trie)

    def __reduce__(self) -> tuple[Callable[..., Catalogue], tuple[str]]:
        return Catalogue, (self.path,)

    def __enter__(self) -> Catalogue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Catalogue: {self.path}, {len(self.trie):,} members, {self.n_changes:,} changes>"


class _Now(NamedTuple):
    """A snapshot of both files; replaced as a whole, because a fork or interrupt may come at any moment."""

    digest: bytes
    first: dict[str, Any]
    """The first record of the file of changes."""
    end: int
    """Number of bytes read from the file of changes."""
    state: _State
    trie: TokenTrie


_locked_files: weakref.WeakSet[io.FileIO] = weakref.WeakSet()
_opening = threading.RLock()  # nothing forks while a file is opened or closed


def _close_locked_files() -> None:
    """Close the descriptors in a forked process, which would keep the locks of its parent's threads."""
    _opening.release()
    for file in list(_locked_files):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_close_locked_files)


@contextmanager
def _locked(path: str) -> Iterator[int]:
    """Open a file and lock it against other descriptors, of this and other processes."""
    try:
        import fcntl
    except ImportError as error:
        raise ArgumentError("a catalogue needs flock, which this system does not have") from error
    is_ours = False
    while not is_ours:
        with _opening:
            file = io.FileIO(path, "a+b")
            _locked_files.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                is_ours = os.path.samestat(os.fstat(file.fileno()), os.stat(path))  # otherwise it was replaced
            if is_ours:
                yield file.fileno()
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # also for the copies in forked processes
            with _opening:
                file.close()


def _base_record(digest: bytes) -> dict[str, Any]:
    return {"base": digest.hex(), "id": secrets.token_hex(8), "version": _VERSION}


class _Log:
    """The locked file of changes."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path, self._file = path, descriptor

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return os.fstat(self._file).st_size

    def first(self) -> dict[str, Any] | None:
        """Return the first record, or None."""
        line, newline, _ = os.pread(self._file, 256, 0).partition(b"\n")
        return _record_of(line) if newline else None

    def read(self, start: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Return the records from a byte on, and the end of the last one.

        PayloadError: one is damaged, or of another version of the format.
        """
        records, end = [], start
        n = self.size()
        with open(self._file, "rb", closefd=False) as file:
            file.seek(start)
            for line in file:
                record = _record_of(line.removesuffix(b"\n")) if line.endswith(b"\n") else None
                if record is None or ("base" not in record and not end):
                    # An incomplete last line is a write that was stopped; its call did not return.
                    begins = not end and _BEGINNING.startswith(line[: len(_BEGINNING)].rstrip(b"\0"))
                    if end + len(line) == n and (end or begins):
                        break
                    raise PayloadError(f"{self.path}: damaged at byte {end:,}, or no file of changes")
                if "base" in record and (version := record.get("version")) != _VERSION:
                    known = f"where this release reads {_VERSION}"
                    raise PayloadError(f"{self.path}: version {version} of the format, {known}")
                records.append(record)
                end += len(line)
        return records, end

    def append(self, record: dict[str, Any], end: int) -> int:
        """Write a record after those that were read, and return its end."""
        text = json.dumps(record).encode()
        rest = memoryview(b"%b %08x\n" % (text, zlib.crc32(text)))
        after = end + len(rest)
        try:
            os.ftruncate(self._file, end)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._file, end)
            raise
        return after


def _record_of(line: bytes) -> dict[str, Any] | None:
    """Return the record of a line; None if it is damaged."""
    text, _, checksum = line.rpartition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_sound = isinstance(record, dict) and ("base" in record or isinstance(record.get("changes"), list))
    return record if is_sound else None


class _State:
    """The changes: a mask of the base's leaves, the names of added members by their tokens, and removed tokens."""

    def __init__(self, base: _core.Trie) -> None:
        self.base, self._aliases = base, frozenset(base.aliases)
        self._keep = np.ones(base.n_leaves, np.bool_)
        self._more: dict[bytes, str] = {}
        self._removed: set[bytes] = set()

    def copy(self) -> _State:
        other = copy(self)
        other._keep, other._more, other._removed = self._keep.copy(), self._more.copy(), self._removed.copy()
        return other

    @property
    def n_changes(self) -> int:
        return len(self._more) + len(self._removed)

    def change(self, rows: Sequence[Any], file: str) -> None:
        """Apply changes of a file; PayloadError if one is malformed."""
        for row in rows:
            try:
                digits, name = row
                tokens = bytes.fromhex(digits)
                if not tokens or len(tokens) % 4 or not (name is None or name.isascii() or name.encode()):
                    raise ValueError
            except (ValueError, TypeError, AttributeError) as error:
                raise PayloadError(f"{file}: a change that is none: {str(row)[:80]!r}") from error
            if name is None:
                self.remove(tokens)
            else:
                self.add(tokens, name)

    def add(self, tokens: bytes, name: str) -> bool:
        """Add a member; return whether anything changed."""
        leaf = self._leaf(tokens)
        if self._more.get(tokens) == name:
            return False
        if leaf is not None:
            if self._keep[leaf] and (self.base.name(leaf) == name or (name, leaf) in self._aliases):
                return False
            self._keep[leaf] = False
        self._removed.discard(tokens)
        self._more.pop(tokens, None)
        self._more[tokens] = name
        return True

    def remove(self, tokens: bytes) -> None:
        leaf = self._leaf(tokens)
        if leaf is not None:
            self._keep[leaf] = False
        self._more.pop(tokens, None)
        self._removed.add(tokens)

    def trie(self) -> TokenTrie:
        """Return the set; ArgumentError if it is empty."""
        if self._more:
            lengths = np.fromiter(map(len, self._more), np.int64, len(self._more)) // 4
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            tokens = np.frombuffer(b"".join(self._more), np.int32)
            more = _core.Trie.build(tokens, offsets, list(self._more.values()), self.base.vocab)
            return TokenTrie.of_core(self.base.joined(more, self._keep))
        return TokenTrie.of_core(self.base if self._keep.all() else self.base.filtered(self._keep))

    def _leaf(self, tokens: bytes) -> int | None:
        node = self.base.descend(np.frombuffer(tokens, np.int32))
        return None if node is None else self.base.leaf(node)
