"""Sets in ``transformers``: for ``generate``, as a logits processor or as ``prefix_allowed_tokens_fn``."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable

from token_trie.engines.matcher import BatchMatcher, TrieMatcher
from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts

try:
    import torch
    from transformers import LogitsProcessor, LogitsProcessorList
except ImportError as error:
    raise ImportError(
        f"token_trie.engines.transformers needs transformers and torch: pip install transformers torch ({error})"
    ) from error

Tokens = tuple[int, ...]


class _Call:
    """Matchers of one call of ``generate``, by the tokens generated: no index tells which row a row was a step ago."""

    def __init__(self, beginning: TrieMatcher, prompt_length: int) -> None:
        self.prompt_length = prompt_length
        self._beginning = beginning
        self._before: dict[Tokens, TrieMatcher | None] = {}  # usually one token shorter
        self._now: dict[Tokens, TrieMatcher | None] = {}
        self._length = -1  # tokens of each key of _now

    def matcher_behind(self, generated: list[int], what: str) -> TrieMatcher | None:
        """Return a row's matcher, None where nothing constrains it any more; ArgumentError for another call's row."""
        tokens = tuple(generated)
        if len(tokens) != self._length:
            self._before, self._now, self._length = self._now, {}, len(tokens)
        if tokens not in self._now:
            is_known = bool(tokens) and tokens[:-1] in self._before
            self._now[tokens] = self._step(tokens) if is_known else self._follow(tokens, what)
        return self._now[tokens]

    def _step(self, tokens: Tokens) -> TrieMatcher | None:
        before = self._before[tokens[:-1]]
        if before is None or before.is_terminated():
            return before  # tokens behind the end are padding
        if tokens[-1] >= before.vocab_size:
            return None  # beams whose scores are all -inf take any column of the logits
        matcher = before.fork()
        return matcher if matcher.accept_token(tokens[-1]) else None

    def _follow(self, tokens: Tokens, what: str) -> TrieMatcher:
        matcher = self._beginning.fork()
        if matcher.accept_tokens(tokens) < len(tokens) and not matcher.is_terminated():
            raise ArgumentError(
                f"{what}: {list(tokens)} behind the {self.prompt_length} columns of the prompt begins no member"
            )
        return matcher


class _Calls:
    """The running calls of ``generate``, told apart by the list of processors that each call makes.

    Tokens do not tell them apart: a call's output may be a step of this call or the prompt of the next.
    """

    def __init__(self, matcher: TrieMatcher, prompt_length: int | None) -> None:
        if not isinstance(matcher, TrieMatcher):
            raise ArgumentError(f"matcher: {type(matcher).__name__} where a TrieMatcher belongs")
        if prompt_length is not None:
            check_counts(0, prompt_length=prompt_length)
        self._beginning = matcher.fork()
        self._prompt_length = prompt_length
        self._by_list: dict[int, _Call] = {}

    def current(self, columns: int) -> _Call:
        """Return the call whose processors are being applied to so many columns; ArgumentError where there is none."""
        if columns < (self._prompt_length or 0):
            raise ArgumentError(f"input_ids: {columns} columns, where prompt_length is {self._prompt_length}")
        processors = _list_applied()
        if processors is None:
            if self._prompt_length is None:
                raise ArgumentError("prompt_length: needed where it is not generate of transformers that calls")
            return _Call(self._beginning, self._prompt_length)
        key = id(processors)
        if key not in self._by_list:
            length = columns if self._prompt_length is None else self._prompt_length
            self._by_list[key] = _Call(self._beginning, length)
            weakref.finalize(processors, self._by_list.pop, key).atexit = False
        return self._by_list[key]


def _list_applied() -> LogitsProcessorList | None:
    """Return the list of processors that transformers is applying; each call of ``generate`` makes its own."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not LogitsProcessorList.__call__.__code__:
        frame = frame.f_back
    caller = frame
    while caller is not None and caller.f_globals.get("__name__") != "transformers.generation.utils":
        caller = caller.f_back
    return None if frame is None or caller is None else frame.f_locals["self"]


class TrieLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Constrains ``model.generate(..., logits_processor=[processor])``.

    It works with greedy decoding, sampling, beams, ``num_return_sequences``, assisted generation, and batches padded on
    the left: each row begins in the set where the prompts end. One processor serves any number of calls of
    ``generate``, also at the same time.

    Parameters
    ----------
    matcher : TrieMatcher
        The set and its rules, with ``vocab_size`` of the model's logits or less: ``TrieMatcher(trie, len(tokenizer),
        end_tokens=[tokenizer.eos_token_id])``. Its own position does not change.
    prompt_length : int, optional
        Columns of ``input_ids`` that are prompt, padding included; those behind them are the beginning of an answer. By
        default all columns that ``generate`` is given. Needed in a loop of your own, where no row may leave the set.

    Raises
    ------
    ArgumentError
        When called: scores of fewer columns than the vocabulary, or a row that begins no member behind the prompt.

    Notes
    -----
    ``generate`` applies a processor behind its penalties and before its truncation (``top_k``, ``top_p``), which then
    cannot remove every allowed token. An answer may have ``TokenTrie.max_tokens`` tokens and an end token; give
    ``max_new_tokens`` accordingly. A row that takes a token outside the set, as beams do where there are fewer members
    than beams, is constrained no more; its score is -inf.
    """

    def __init__(self, matcher: TrieMatcher, prompt_length: int | None = None) -> None:
        self._calls = _Calls(matcher, prompt_length)
        self._vocab_size = matcher.vocab_size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return a copy of the scores in which those of tokens that are not allowed are -inf."""
        n_vocab = self._vocab_size
        if scores.ndim != 2 or scores.shape[1] < n_vocab:
            raise ArgumentError(f"scores: shape {tuple(scores.shape)} where (rows, {n_vocab} or more) belongs")
        call = self._calls.current(input_ids.shape[1])
        rows = input_ids[:, call.prompt_length :].tolist()
        matchers = [call.matcher_behind(row, f"input_ids[{i}]") for i, row in enumerate(rows)]
        mask = torch.full((len(rows), (n_vocab + 31) // 32), -1, dtype=torch.int32)
        at = [i for i, matcher in enumerate(matchers) if matcher is not None]
        BatchMatcher.batch_fill_next_token_bitmask([matcher for matcher in matchers if matcher is not None], mask, at)
        bits = (mask.to(scores.device)[:, :, None] >> torch.arange(32, dtype=torch.int32, device=scores.device)) & 1
        is_out = bits.reshape(len(rows), -1)[:, :n_vocab] == 0
        is_constrained = torch.tensor([matcher is not None for matcher in matchers], device=scores.device)
        padding = is_constrained[:, None].expand(-1, scores.shape[1] - n_vocab)
        return scores.masked_fill(torch.cat([is_out, padding], 1), -torch.inf)


def prefix_allowed_tokens_fn(matcher: TrieMatcher, prompt_length: int) -> Callable[[int, torch.Tensor], list[int]]:
    """Make the function that ``generate(..., prefix_allowed_tokens_fn=…)`` takes.

    `TrieLogitsProcessor` does the same and is faster: this function is called row by row, and lists all allowed tokens.

    Parameters
    ----------
    matcher, prompt_length
        As of `TrieLogitsProcessor`.
    """
    check_counts(0, prompt_length=prompt_length)
    calls = _Calls(matcher, prompt_length)

    def allowed(batch_id: int, input_ids: torch.Tensor) -> list[int]:
        call = calls.current(len(input_ids))
        behind = call.matcher_behind(input_ids[call.prompt_length :].tolist(), f"input_ids[{batch_id}]")
        if behind is None:
            return list(range(matcher.vocab_size))
        allowed_tokens: list[int] = behind.allowed_tokens().tolist()
        return allowed_tokens

    return allowed
