"""Answers in OpenAI's shapes, whole or as events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from token_trie.serve.completions.answers import Finished
from token_trie.serve.completions.logprobs import as_chat, as_completion


@dataclass
class Chat:
    """``/v1/chat/completions``."""

    model: str
    n_each: int = 1
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the response."""
        choices = [self._choice(i, answer) for i, answer in enumerate(answers)]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage_of(answers, self.n_each)}

    def begin(self, place: int) -> dict[str, Any]:
        """Return an answer's first chunk."""
        return self._chunk(place, {"role": "assistant", "content": ""})

    def text(self, place: int, text: str) -> dict[str, Any]:
        """Return the chunk of some more text."""
        return self._chunk(place, {"content": text})

    def end(self, place: int, answer: Finished) -> dict[str, Any]:
        """Return an answer's last chunk."""
        delta = {} if answer.call is None else {"tool_calls": [{"index": 0, **answer.call}]}
        return self._chunk(place, delta, answer)

    def usage(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the chunk of what it took."""
        usage = usage_of(answers, self.n_each)
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, place: int, answer: Finished) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.call is not None:
            message |= {"content": None, "tool_calls": [answer.call]}
        return {"index": place, "message": message, **self._end(answer)}

    def _chunk(self, place: int, delta: dict[str, Any], answer: Finished | None = None) -> dict[str, Any]:
        end = {"logprobs": None, "finish_reason": None} if answer is None else self._end(answer)
        return {**self._head("chat.completion.chunk"), "choices": [{"index": place, "delta": delta, **end}]}

    def _end(self, answer: Finished) -> dict[str, Any]:
        logprobs = None if answer.logprobs is None else as_chat(answer.logprobs)
        return {"logprobs": logprobs, "finish_reason": answer.why, **answer.more}


@dataclass
class Completion:
    """``/v1/completions``."""

    model: str
    n_each: int = 1
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the response."""
        choices = [self._choice(i, answer.text, answer) for i, answer in enumerate(answers)]
        return {**self._head(), "choices": choices, "usage": usage_of(answers, self.n_each)}

    def begin(self, place: int) -> dict[str, Any] | None:
        """Return nothing: an answer begins with its text."""
        return None

    def text(self, place: int, text: str) -> dict[str, Any]:
        """Return the chunk of some more text."""
        return {**self._head(), "choices": [self._choice(place, text)]}

    def end(self, place: int, answer: Finished) -> dict[str, Any]:
        """Return an answer's last chunk."""
        return {**self._head(), "choices": [self._choice(place, "", answer)]}

    def usage(self, answers: Sequence[Finished]) -> dict[str, Any]:
        """Return the chunk of what it took."""
        return {**self._head(), "choices": [], "usage": usage_of(answers, self.n_each)}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def _choice(self, place: int, text: str, answer: Finished | None = None) -> dict[str, Any]:
        end: dict[str, Any] = {"logprobs": None, "finish_reason": None}
        if answer is not None:
            logprobs = None if answer.logprobs is None else as_completion(answer.logprobs)
            end = {"logprobs": logprobs, "finish_reason": answer.why, **answer.more}
        return {"index": place, "text": text, **end}


def usage_of(answers: Sequence[Finished], n_each: int) -> dict[str, Any]:
    """Return the tokens of some prompts, which have so many answers each."""
    n_prompt = sum(answer.n_prompt for answer in answers[::n_each])
    n_cached = sum(answer.n_cached for answer in answers[::n_each])
    n_tokens = sum(answer.n_tokens for answer in answers)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_tokens,
        "total_tokens": n_prompt + n_tokens,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }
