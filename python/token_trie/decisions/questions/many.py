"""`decide_many`: questions about many states at once, in one context."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any

from token_trie.decisions.questions.asked import Asked, View
from token_trie.decisions.questions.decide import answer_about, named, naming, priors_of, read_questions
from token_trie.decisions.questions.options import DecideOptions
from token_trie.decisions.questions.scores import Reading, Scored, score_all
from token_trie.decisions.questions.wording import state_text
from token_trie.decisions.results import Results
from token_trie.errors import ArgumentError, ContextError, TokenTrieError, VocabularyError
from token_trie.llama.batch import Batch
from token_trie.llama.chooser import n_ctx_of
from token_trie.llama.sequential import Sequential
from token_trie.native.arguments import check_counts, check_flags, lookup
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.many import OnError
    from token_trie.decisions.questions.options import DecideKeywords


@takes(DecideOptions)
def decide_many(
    llm: Llama,
    states: Iterable[object],
    questions: object,
    *,
    on_error: OnError = "raise",
    progress: bool = False,
    n_parallel: int | None = None,
    n_ctx: int | None = None,
    **options: Unpack[DecideKeywords],
) -> Iterator[Any]:
    """Answer questions about many states, as `decide` does about one.

    States are read as there is room for them, and answers are handed out lazily, in the order of the states.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model. Its own context is not touched, and it may be used meanwhile.
    states : iterable of states
        Each as of `decide`.
    questions
        As of `decide`, about all states.
    on_error : {"raise", "return"}
        What becomes of a state that cannot be answered about: its error, which names its position, is raised, which
        ends the iteration, or handed out in place of answers, and the others go on.
    progress, n_parallel, n_ctx
        As of `choose_many`.
    **options
        Those of `DecideOptions`.

    Yields
    ------
    dict of answers, or an answer
        What `decide` would return, up to llama.cpp's rounding, which depends on the size of a batch; with
        ``reproducible`` the same bit by bit. With that, with ``instead`` and ``orders="auto"``, one state at a time.

    Raises
    ------
    ArgumentError
        At once: questions or options that are none.
    ArgumentError, VocabularyError, ContextError
        Of a state, with its position; of a question alone, with its name.
    CancelledError
        The Llama was closed meanwhile.
    """
    read = DecideOptions.read("decide_many", options)
    asked = read_questions(questions, read)
    check_flags(progress=progress)
    lookup(on_error, {"raise": 0, "return": 1}, "on_error")
    if n_parallel is not None:
        check_counts(2, n_parallel=n_parallel)
    if isinstance(states, (str, bytes)) or not isinstance(states, Iterable):
        raise ArgumentError(f"states: {type(states).__name__} where several belong; for one state there is decide")
    n_ctx_of(llm)
    total = len(states) if isinstance(states, Sized) else None

    def results(batch: Batch | Sequential) -> Generator[Any, None, None]:
        if read.reproducible or read.instead or read.orders == "auto":
            answers = _one_by_one(llm, states, asked, read)
        else:
            answers = _together(llm, batch, states, asked, read)
        with Progress(total, "states", wanted=progress) as shown:
            for n, answer in enumerate(answers):
                shown.move(n + 1)
                if isinstance(answer, TokenTrieError):
                    placed = type(answer)(f"states[{n}]: {answer}")
                    placed.__cause__ = answer
                    if on_error == "raise":
                        raise placed
                    answer = placed
                yield answer

    return Results(llm, n_parallel or 0, n_ctx, results)


def _one_by_one(
    llm: Llama, states: Iterable[object], asked: dict[str | None, Asked], options: DecideOptions
) -> Iterator[Any]:
    for state in states:
        try:
            yield answer_about(llm, state, asked, options)
        except (ArgumentError, VocabularyError, ContextError) as error:
            yield error


def _together(
    llm: Llama,
    batch: Batch | Sequential,
    states: Iterable[object],
    asked: dict[str | None, Asked],
    options: DecideOptions,
) -> Iterator[Any]:
    priors = priors_of(llm, asked, options)
    views = [view for one in asked.values() for view in one.views]
    results = score_all(llm, batch, (_reader(llm, view, state) for state in states for view in views))
    while read := list(itertools.islice(results, len(views))):
        left = iter(read)
        scored = {name: list(itertools.islice(left, len(one.views))) for name, one in asked.items()}
        yield _answers(asked, scored, priors)


def _reader(llm: Llama, view: View, state: object) -> Callable[[], Reading]:
    return lambda: view.reading(llm, state_text(state))


def _answers(
    asked: dict[str | None, Asked],
    scored: dict[str | None, list[Scored | TokenTrieError]],
    priors: dict[str | None, list[Scored | None]],
) -> Any:
    answers: dict[str | None, Any] = {}
    for name, results in scored.items():
        try:
            with naming(name):
                answers[name] = asked[name].answer([_require(one) for one in results], priors[name])
        except TokenTrieError as error:
            return error
    return named(answers)


def _require(scored: Scored | TokenTrieError) -> Scored:
    if isinstance(scored, TokenTrieError):
        raise scored
    return scored
