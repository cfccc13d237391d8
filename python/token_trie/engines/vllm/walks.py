"""Where requests stand in their sets, and the logits of those that do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import xgrammar

from token_trie.engines.matcher import BatchMatcher, TrieMatcher
from token_trie.engines.vllm.request import read_request
from token_trie.engines.vllm.vocabulary import EngineVocabulary
from token_trie.errors import TokenTrieError
from token_trie.sets.trie import TokenTrie

_log = logging.getLogger("token_trie.vllm")


class Place(NamedTuple):
    """Where a row of logits stands."""

    row: int
    matcher: TrieMatcher
    is_greedy: bool


class Walk:
    """One request's way through its set."""

    def __init__(self, matcher: TrieMatcher, is_greedy: bool) -> None:
        self._matcher = matcher
        self._is_greedy = is_greedy
        self._last = -1
        self._is_lost = False
        self.n_tokens = 0
        """Tokens of the output that it has come over."""

    def follow(self, output: Sequence[int]) -> None:
        """Come to where an output stands, from where the walk stood, or from the beginning if that was taken back.

        Raises
        ------
        RuntimeError
            A token is not known yet, so that nothing can be said of the next one.
        """
        n = self.n_tokens
        if n and (n > len(output) or output[n - 1] != self._last):
            self._matcher.reset()
            self.n_tokens, self._is_lost = 0, False
        self.advance(output[self.n_tokens :])

    def advance(self, tokens: Sequence[int]) -> None:
        """Go on over tokens; errors as of `follow`."""
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

    def places(self, row: int, drafts: Sequence[int] = ()) -> list[Place]:
        """Where the row behind the output stands, and those behind each draft token that is in the set."""
        if self._is_lost:
            return []
        found = [Place(row, self._matcher, self._is_greedy)]
        for i, token in enumerate(drafts, start=1):
            matcher = found[-1].matcher.fork()
            if matcher.is_terminated() or not matcher.accept_token(token):
                break  # it will be rejected, and so will what follows it
            found.append(Place(row + i, matcher, self._is_greedy))
        return found


class Walker:
    """Begins the walks of one engine, and never fails: what a request gets wrong ends that request.

    Much of it was checked where the request came in. What is left, such as a file that has changed since, is logged,
    and the request may answer with nothing but the end.
    """

    def __init__(self, find_vocabulary: Callable[[], EngineVocabulary]) -> None:
        self._find = find_vocabulary
        self._vocabulary: EngineVocabulary | None = None

    @property
    def vocabulary(self) -> EngineVocabulary:
        """The engine's; found when it is first asked for."""
        if self._vocabulary is None:
            self._vocabulary = self._find()
        return self._vocabulary

    def begin(self, params: Any, prompt: Sequence[int] | None) -> Walk | None:
        """Begin where a prompt ends; None for a request without a set."""
        if not params.extra_args:
            return None
        ends = sorted(params.all_stop_token_ids)
        try:
            request = read_request(params)
            if request is None:
                return None
            return Walk(request.matcher(self.vocabulary, list(prompt or ()), ends), request.is_greedy)
        except TokenTrieError as error:
            _log.error("a request is ended: %s", error)
        except Exception:
            _log.exception("a request is ended, by a defect in token-trie")
        return Walk(_at_the_end(self.vocabulary.size, ends), False) if ends else None


def _at_the_end(size: int, ends: list[int]) -> TrieMatcher:
    some = next(token for token in range(len(ends) + 1) if token not in ends)
    matcher = TrieMatcher(TokenTrie.from_sequences({"": [some]}), size, end_tokens=ends)
    matcher.accept_tokens([some, ends[0]])
    return matcher


def mask_(logits: torch.Tensor, places: Sequence[Place]) -> torch.Tensor:
    """Set the logits of tokens that are not allowed to -inf, in place, and return them.

    In greedy mode, inside the span, of all but the best. Where what ran before has left no allowed token, one of them
    comes back.
    """
    if not places:
        return logits
    size = places[0].matcher.vocab_size
    mask = torch.empty((len(logits), (size + 31) // 32), dtype=torch.int32)
    matchers, given_rows = [place.matcher for place in places], [place.row for place in places]
    is_needed = BatchMatcher.batch_fill_next_token_bitmask(matchers, mask, given_rows)
    kept = [place for place, is_kept in zip(places, is_needed, strict=True) if is_kept]
    if not kept:
        return logits
    rows = [place.row for place in kept]
    xgrammar.apply_token_bitmask_inplace(logits, mask.to(logits.device), vocab_size=size, indices=rows)
    at = torch.tensor([rows, _first_tokens(mask[rows].numpy())], device=logits.device)
    logits[:, size:].index_fill_(0, at[0], -torch.inf)
    is_dead = logits.amax(1)[at[0]] == -torch.inf
    logits[at[0], at[1]] = torch.where(is_dead, 0.0, logits[at[0], at[1]])
    greedy = [place.row for place in kept if place.is_greedy and not place.matcher._handle.is_free]
    if greedy:
        best = torch.tensor(greedy, device=logits.device)
        token = logits[best].argmax(1, keepdim=True)
        value = logits[best].gather(1, token)
        logits[best] = torch.full_like(logits[best], -torch.inf).scatter_(1, token, value)
    return logits


def _first_tokens(mask: npt.NDArray[np.int32]) -> list[int]:
    """Lowest token of each row, which has one."""
    words = (mask != 0).argmax(1)
    word = mask[np.arange(len(mask)), words].view(np.uint32)
    bits = np.log2(word & -word).astype(np.int64)
    tokens: list[int] = (32 * words + bits).tolist()
    return tokens
