"""What is asked, read once; bound to what it stands behind, a stream or a batch can run it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from token_trie.decisions.bound import Reader
from token_trie.decisions.options import ChooseOptions, ListOptions, RecordOptions
from token_trie.decisions.think import Think
from token_trie.llama.batch import Batch
from token_trie.llama.query import Answer
from token_trie.llama.stream import Stream

R = TypeVar("R")


class Thought(NamedTuple):
    """What the model wrote first."""

    text: str
    ms: float


class Prefix(NamedTuple):
    """What a request stands behind."""

    tokens: list[int]
    is_standing: bool = False
    """Whether the stream's sequence is this already."""
    thought: Thought | None = None
    """What it ends in, before the marker."""

    @property
    def thought_text(self) -> str | None:
        """What the model wrote first."""
        return None if self.thought is None else self.thought.text


class Request(ABC, Generic[R]):
    """Choices, or what else there is to answer with, and options that fit it."""

    @property
    def think(self) -> Think | None:
        """What the model does first."""
        return None

    @property
    def seed(self) -> int | None:
        """Of what is drawn."""
        return None

    @property
    def draws(self) -> bool:
        """Whether something is."""
        return False

    @abstractmethod
    def bind(self, reader: Reader, prefix: Prefix) -> Bound[R]:
        """Bind it to what it stands behind.

        Raises
        ------
        ArgumentError, VocabularyError, ContextError
            They fit neither each other nor the model.
        """


class Written(Request[R]):
    """A request whose answer the model writes, after a thought if it is to."""

    options: ChooseOptions | ListOptions | RecordOptions

    @property
    def think(self) -> Think | None:
        """What the model does first."""
        return self.options.think

    @property
    def seed(self) -> int | None:
        """Of what is drawn."""
        return self.options.seed

    @property
    def draws(self) -> bool:
        """Whether something is."""
        return self.options.mode == "sampled" or self.options.think is not None


class Bound(ABC, Generic[R]):
    """A request, ready for a stream."""

    tokens: list[int]
    """What it stands behind."""

    @abstractmethod
    def run(self, stream: Stream) -> R:
        """Answer it; what it stands behind becomes the stream's sequence, and the stream's trie is then any."""

    def missing(self, answer: R) -> Sequence[int]:
        """Return what of an answer the stream's sequence has not taken up yet."""
        return ()

    def batched(self) -> Batched[R] | None:
        """Return it as a batch takes it; None where it needs a stream."""
        return None


class Batched(ABC, Generic[R]):
    """A request, ready for a batch."""

    @abstractmethod
    def submit(self, batch: Batch) -> int:
        """Put it into a batch; return its ticket."""

    @abstractmethod
    def read(self, answer: Answer) -> R | Batched[R]:
        """Return what its answer says, or what is to be submitted behind that."""
