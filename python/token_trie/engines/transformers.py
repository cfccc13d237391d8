"""Sets in ``transformers``: for ``generate``, as a logits processor or as ``prefix_allowed_tokens_fn``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from token_trie.engines.matcher import BatchMatcher, TrieMatcher
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts

try:
    import torch
    from transformers import LogitsProcessor
except ImportError as error:
    raise ImportError(
        f"token_trie.engines.transformers needs transformers and torch: pip install transformers torch ({error})"
    ) from error

Tokens = tuple[int, ...]


class _Walks:
    """Matchers by what was generated: a row's tokens are all that tells which row it was a step ago."""

    def __init__(self, beginning: TrieMatcher) -> None:
        self._last: dict[Tokens, TrieMatcher | None] = {(): beginning}
        self._beginning = beginning

    def after(self, rows: list[Tokens]) -> list[TrieMatcher | None]:
        """Return a matcher for each row; None where a token was not allowed, and nothing is constrained any more."""
        made: dict[Tokens, TrieMatcher | None] = {}
        for tokens in rows:
            if tokens not in made:
                made[tokens] = self._last[tokens] if tokens in self._last else self._step(tokens)
        self._last = made
        return [made[tokens] for tokens in rows]

    def _step(self, tokens: Tokens) -> TrieMatcher | None:
        known = tokens[:-1] in self._last
        before = self._last[tokens[:-1]] if known else self._beginning
        if before is None or before.is_terminated():
            return before  # what comes behind the end is padding
        matcher = before.fork()
        due = tokens[-1:] if known else tokens
        return matcher if matcher.accept_tokens(due) == len(due) or matcher.is_terminated() else None


class TrieLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Constrains ``model.generate(..., logits_processor=[processor])``.

    Greedy, sampling, beams, ``num_return_sequences``, batches with padding on the left: each row walks the set from
    where the prompts end. One processor serves one call of ``generate`` at a time, and any number one after the other.

    Parameters
    ----------
    matcher : TrieMatcher
        The set and its rules, with ``vocab_size`` of the model's logits or less: ``TrieMatcher(trie, len(tokenizer),
        end_tokens=[tokenizer.eos_token_id])``. It stays where it stands.
    prompt_length : int, optional
        Columns of ``input_ids`` that are prompt. By default those of a call's first step, which is taken to be one
        where the columns are not one more than the step before had.

    Notes
    -----
    ``generate`` has a processor before its own truncation (``top_k``, ``top_p``), so no allowed token is lost to it,
    and behind its penalties. An answer may be as long as ``TokenTrie.max_tokens`` and an end token; give
    ``max_new_tokens`` accordingly. A row that takes a token outside the set, as beams do where there are fewer members
    than beams, is constrained no more; its score is -inf.
    """

    def __init__(self, matcher: TrieMatcher, prompt_length: int | None = None) -> None:
        self._matcher = _beginning_of(matcher)
        if prompt_length is not None:
            check_counts(0, prompt_length=prompt_length)
        self._given_length = prompt_length
        self._prompt_length = self._n_columns = -1
        self._walks = _Walks(self._matcher)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores with those of tokens that are not allowed at -inf; the first ones stay as they are."""
        n_vocab = self._matcher.vocab_size
        if scores.ndim != 2 or scores.shape[1] < n_vocab:
            raise ArgumentError(f"scores: shape {tuple(scores.shape)} where (rows, {n_vocab} or more) belongs")
        columns = input_ids.shape[1]
        if columns != self._n_columns + 1:
            self._prompt_length = columns if self._given_length is None else self._given_length
            self._walks = _Walks(self._matcher)
        self._n_columns = columns
        rows = [tuple(row) for row in input_ids[:, self._prompt_length :].tolist()]
        walks = self._walks.after(rows)
        mask = torch.full((len(rows), (n_vocab + 31) // 32), -1, dtype=torch.int32)
        at = [i for i, walk in enumerate(walks) if walk is not None]
        BatchMatcher.batch_fill_next_token_bitmask([walk for walk in walks if walk is not None], mask, at)
        bits = (mask.to(scores.device)[:, :, None] >> torch.arange(32, dtype=torch.int32, device=scores.device)) & 1
        is_out = bits.reshape(len(rows), -1)[:, :n_vocab] == 0
        is_constrained = torch.tensor([walk is not None for walk in walks], device=scores.device)
        padding = is_constrained[:, None].expand(-1, scores.shape[1] - n_vocab)
        return scores.masked_fill(torch.cat([is_out, padding], 1), -torch.inf)


def prefix_allowed_tokens_fn(matcher: TrieMatcher, prompt_length: int) -> Callable[[int, torch.Tensor], list[int]]:
    """Make the function that ``generate(..., prefix_allowed_tokens_fn=…)`` takes.

    `TrieLogitsProcessor` does the same for less: this is asked row by row, and lists all that is allowed.

    Parameters
    ----------
    matcher : TrieMatcher
        As of `TrieLogitsProcessor`.
    prompt_length : int
        Columns of ``input_ids`` that are prompt, padding included.
    """
    beginning = _beginning_of(matcher)
    check_counts(0, prompt_length=prompt_length)

    def allowed(batch_id: int, input_ids: torch.Tensor) -> list[int]:
        tokens: Any = tuple(input_ids[prompt_length:].tolist())
        (walk,) = _Walks(beginning).after([tokens])
        if walk is None:
            return list(range(matcher.vocab_size))
        allowed_tokens: list[int] = walk.allowed_tokens().tolist()
        return allowed_tokens

    return allowed


def _beginning_of(matcher: TrieMatcher) -> TrieMatcher:
    if not isinstance(matcher, TrieMatcher):
        raise ArgumentError(f"matcher: {type(matcher).__name__} where a TrieMatcher belongs")
    return matcher.fork()
