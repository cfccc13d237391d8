"""Positions of requests in their sets, and the masks of their logits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import xgrammar

from token_trie.engines.matcher import PUT_BACK, BatchMatcher, TrieMatcher
from token_trie.engines.vllm.request import EngineVocabulary, read_request
from token_trie.errors import TokenTrieError
from token_trie.sets.trie import TokenTrie

_log = logging.getLogger("token_trie.vllm")


class MaskedRow(NamedTuple):
    """A row of logits, and its position in a set."""

    at: int
    matcher: TrieMatcher
    decoding: Decoding


class Decoding:
    """The position of a request in its set, moved along its output."""

    def __init__(self, matcher: TrieMatcher, is_greedy: bool) -> None:
        self._matcher = matcher
        self.is_greedy = is_greedy
        self._last = -1
        self._is_lost = False
        self._has_warned = False
        self.n_tokens = 0
        """Number of tokens of the output that it has stepped over."""

    def follow(self, output: Sequence[int]) -> None:
        """Move to the end of the output, from the start if tokens were taken back; RuntimeError for unknown tokens."""
        n = self.n_tokens
        if n and (n > len(output) or output[n - 1] != self._last):
            self._matcher.reset()
            self.n_tokens, self._is_lost = 0, False
        self.advance(output[self.n_tokens :])

    def advance(self, tokens: Sequence[int]) -> None:
        """Step over new tokens of the output; errors as for `follow`."""
        if len(tokens) == 0:
            return
        if -1 in tokens:
            raise RuntimeError(
                "token_trie: vLLM does not tell the last token. Name the processor, by --logits-processors "
                "token_trie.engines.vllm:TrieLogitsProcessor or LLM(logits_processors=[...]); one that comes from an "
                "entry point alone is given no tokens under asynchronous scheduling"
            )
        self.n_tokens += len(tokens)
        self._last = tokens[-1]
        n_taken = 0 if self._is_lost else self._matcher.accept_tokens(tokens)
        if n_taken < len(tokens) and not self._is_lost and not self._matcher.is_terminated():
            _log.warning("token %d is not in the set; the request is constrained no more", tokens[n_taken])
            self._is_lost = True

    def rows(self, row: int, drafts: Sequence[int] = ()) -> list[MaskedRow]:
        """Return the row after the output, and one after each draft token that the set allows."""
        if self._is_lost:
            return []
        found = [MaskedRow(row, self._matcher, self)]
        for i, token in enumerate(drafts, start=1):
            matcher = found[-1].matcher.fork()
            if matcher.is_terminated() or not matcher.accept_token(token):
                break  # vLLM will reject this token and those after it
            found.append(MaskedRow(row + i, matcher, self))
        return found

    def warn_of_put_back(self) -> None:
        """Log once that all allowed tokens had a logit of -inf."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning(PUT_BACK, "these were put back with equal logits")


class Decoder:
    """Begins decodings for one engine, and never raises: a wrong request ends only itself.

    Most errors are raised when the request comes in. Later ones, such as a file that has changed since, are logged, and
    the request is forced to an end token.
    """

    def __init__(self, find_vocabulary: Callable[[], EngineVocabulary]) -> None:
        self._find = find_vocabulary
        self._vocabulary: EngineVocabulary | None = None

    @property
    def vocabulary(self) -> EngineVocabulary:
        """The engine's vocabulary, found at the first use."""
        if self._vocabulary is None:
            self._vocabulary = self._find()
        return self._vocabulary

    def begin(self, params: Any, prompt: Sequence[int] | None) -> Decoding | None:
        """Begin after a prompt; None for a request without a set."""
        if not params.extra_args:
            return None
        ends = sorted(params.all_stop_token_ids)
        try:
            request = read_request(params)
            if request is None:
                return None
            return Decoding(request.matcher(self.vocabulary, list(prompt or ()), ends), request.is_greedy)
        except TokenTrieError as error:
            _log.error("a request is ended: %s", error)
        except Exception:
            _log.exception("a request is ended, by a defect in token-trie")
        return Decoding(_ended_matcher(self.vocabulary.size, ends), False) if ends else None


def _ended_matcher(size: int, ends: list[int]) -> TrieMatcher:
    some = next(token for token in range(len(ends) + 1) if token not in ends)
    matcher = TrieMatcher(TokenTrie.from_sequences({"": [some]}), size, end_tokens=ends)
    matcher.accept_tokens([some, ends[0]])
    return matcher


def mask_(logits: torch.Tensor, given: Sequence[MaskedRow]) -> torch.Tensor:
    """Set the logits of tokens that are not allowed to -inf, in place, and return them.

    In greedy mode, inside the span, only the best token stays. If earlier processors have left a row no allowed token,
    all of them get a logit of 0, with a warning.
    """
    if not given:
        return logits
    size = given[0].matcher.vocab_size
    mask = torch.empty((len(logits), (size + 31) // 32), dtype=torch.int32)
    indices = [row.at for row in given]
    is_needed = BatchMatcher.batch_fill_next_token_bitmask([row.matcher for row in given], mask, indices)
    kept = [row for row, is_kept in zip(given, is_needed, strict=True) if is_kept]
    if not kept:
        return logits
    words = mask.to(logits.device)
    _apply(logits, words, size, kept)
    is_empty = logits.amax(1).isneginf().tolist()
    empty = [row for row in kept if is_empty[row.at]]
    if empty:
        logits[[row.at for row in empty]] = 0.0
        _apply(logits, words, size, empty)
        for row in empty:
            row.decoding.warn_of_put_back()
    greedy = [row.at for row in kept if row.decoding.is_greedy and not row.matcher.is_free]
    if greedy:
        best = torch.tensor(greedy, device=logits.device)
        token = logits[best].argmax(1, keepdim=True)
        value = logits[best].gather(1, token)
        logits[best] = torch.full_like(logits[best], -torch.inf).scatter_(1, token, value)
    return logits


def _apply(logits: torch.Tensor, mask: torch.Tensor, size: int, given: Sequence[MaskedRow]) -> None:
    rows = [row.at for row in given]
    xgrammar.apply_token_bitmask_inplace(logits, mask, vocab_size=size, indices=rows)
    logits[:, size:].index_fill_(0, torch.tensor(rows, device=logits.device), -torch.inf)
