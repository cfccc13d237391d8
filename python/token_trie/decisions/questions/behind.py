"""Questions about what stands in a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from token_trie.decisions.bound import Reader
from token_trie.decisions.questions.asked import Asked, View
from token_trie.decisions.questions.decide import answers_of
from token_trie.decisions.questions.formed import FormView
from token_trie.decisions.questions.forms import Put
from token_trie.decisions.questions.options import DecideOptions
from token_trie.decisions.questions.respondent import Respondent
from token_trie.decisions.questions.scores import Reading, Scored, remembered, score_alone, score_in, write_in
from token_trie.decisions.request import Bound, Prefix, Request
from token_trie.errors import ArgumentError
from token_trie.llama.stream import Stream
from token_trie.llama.text import behind_by
from token_trie.native.core import _core, vocab_of
from token_trie.native.lease import lease
from token_trie.sets.prompt import check_length, first_token, tokenize_text
from token_trie.sets.rendered import tokens_of


@dataclass(frozen=True, eq=False)
class QuestionsRequest(Request[Any]):
    """Questions about what stands, or about a state behind it."""

    state: str | None
    asked: dict[str | None, Asked]
    options: DecideOptions

    def bind(self, reader: Reader, prefix: Prefix) -> _BoundQuestions:
        """Bind them to what stands; each is read for itself, when it is asked."""
        return _BoundQuestions(prefix.tokens, self)


@dataclass(frozen=True, eq=False)
class _BoundQuestions(Bound[Any]):
    tokens: list[int]
    request: QuestionsRequest

    def run(self, stream: Stream) -> Any:
        options = self.request.options
        standing = _OfStream(stream, self.tokens, self.request.state, options)
        answers = answers_of(standing, self.request.asked, options)
        stream.prefill(self.tokens)
        return answers


class _OfStream(Respondent):
    """What stands in a stream, whose sequence is another after each reading."""

    def __init__(self, stream: Stream, tokens: list[int], state: str | None, options: DecideOptions) -> None:
        self._stream = stream
        self._llm = stream.llm
        self._tokens = tokens
        self._state = state
        self._is_reproducible = options.reproducible
        if options.reproducible and self._llm is None:
            raise ArgumentError("reproducible: for handles on a Llama, and this one is on a file")

    @property
    def known(self) -> dict[object, Any]:
        """What is known of the model."""
        return self._stream.with_model(lambda _, known: known)

    def reading(self, view: View) -> Reading:
        """Return what is to be read behind what stands."""
        formed = _formed(view)
        return Reading(self._behind(self._tokens, formed, self._state), formed.weighing.texts)

    def prior(self, view: View) -> Scored:
        """Return what the question gives its texts without a state: behind what stands before it, or else alone."""
        formed = _formed(view)
        texts, absent = formed.weighing.texts, formed.form.absent
        if self._state is not None:
            return self.score(Reading(self._behind(self._tokens, formed, absent), texts))
        alone = Reading(self._alone(formed, absent), texts)
        return remembered(
            self.known,
            alone,
            lambda: self._score(alone, is_beside=True),
            is_reproducible=self._is_reproducible,
        )

    def score(self, reading: Reading) -> Scored:
        """Score texts the way that was asked for."""
        return self._score(reading, is_beside=False)

    def written(self, reading: Reading) -> str:
        """Return the line that the model writes itself, or its beginning."""
        return write_in(self._stream, reading)

    def _score(self, reading: Reading, *, is_beside: bool) -> Scored:
        if self._is_reproducible and self._llm is not None:
            return score_alone(self._llm, reading)
        return score_in(self._stream, reading, is_beside=is_beside)

    def _alone(self, view: FormView, state: str) -> list[int]:
        put = _put(view, state)
        if self._llm is not None:
            return self._stream.tokenize(put)
        return self._stream.with_vocab(lambda vocab: [first_token(vocab), *_spelled(vocab, put, b"")])

    def _behind(self, before: list[int], view: FormView, state: str | None) -> list[int]:
        """Return the tokens of what stands with a question behind it, and its state if it has one."""
        put, llm = _put(view, state), self._llm
        if llm is None:
            n_kept, more = self._stream.with_vocab(
                lambda vocab: behind_by(vocab, before, lambda lead: _spelled(vocab, put, lead))
            )
            return before[:n_kept] + more
        with lease(llm):
            check_length(llm, put.encode(), self._stream.n_ctx_max)
            rendered = put.render(llm)

            def tokenize(lead: bytes) -> list[int]:
                whole = rendered.behind(llm, lead.decode(errors="surrogateescape"))
                return tokens_of(llm, whole, lambda text: llm.tokenize(text, add_bos=False, special=True))

            n_kept, more = behind_by(vocab_of(llm), before, tokenize)
            return before[:n_kept] + more


def _formed(view: View) -> FormView:
    assert isinstance(view, FormView)  # as the questions were read for a stream
    if view.shots is not None:
        raise ArgumentError("examples: stand before a state, and what stands on a handle stands there already")
    return view


def _put(view: FormView, state: str | None) -> Put:
    if view.form.chat:
        raise ArgumentError("form: chat=True makes messages, which do not go behind what stands")
    return Put(view.form.template, state, view.instructions, view.listed)


def _spelled(vocab: _core.Vocab, put: Put, lead: bytes) -> list[int]:
    """Return the tokens of a question for a model without a Llama: no name in it becomes a control token."""
    controls = (text for _, text in vocab.control_texts() if len(text) > 1)
    if any(text.decode(errors="ignore") in put.template for text in controls):
        raise ArgumentError("form: its template names control tokens, for which the handle is to be on a Llama")
    return tokenize_text(vocab, lead + put.encode(), "question", begins=False, special=False)
