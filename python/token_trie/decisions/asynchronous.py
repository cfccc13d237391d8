"""Decisions under asyncio. A task that is cancelled, or timed out, ends its decision before it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from token_trie.decisions.choose import choose
from token_trie.decisions.decision import Decision
from token_trie.decisions.lists import ListDecision, choose_list
from token_trie.decisions.score import score
from token_trie.llama.asynchronous import in_worker
from token_trie.llama.chooser import cancel
from token_trie.native.core import Llama
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ChooseKeywords, ListKeywords

T = TypeVar("T")


@overload
async def achoose(
    llm: Llama, prompt: Prompt, choices: TokenTrie, **options: Unpack[ChooseKeywords]
) -> Decision[str]: ...
@overload
async def achoose(
    llm: Llama, prompt: Prompt, choices: Mapping[str, T], **options: Unpack[ChooseKeywords]
) -> Decision[T]: ...
@overload
async def achoose(
    llm: Llama, prompt: Prompt, choices: Iterable[T], **options: Unpack[ChooseKeywords]
) -> Decision[T]: ...
@overload
async def achoose(llm: Llama, prompt: Prompt, choices: object, **options: Unpack[ChooseKeywords]) -> Decision[Any]: ...
async def achoose(llm: Llama, prompt: Prompt, choices: ChoicesLike, **options: Any) -> Decision[Any]:
    """Do as `choose` does, on a worker thread."""
    decision: Decision[Any] = await in_worker(
        lambda: choose(llm, prompt, choices, **options), lambda thread: cancel(llm, thread)
    )
    return decision


@overload
async def achoose_list(
    llm: Llama, prompt: Prompt, choices: TokenTrie, **options: Unpack[ListKeywords]
) -> ListDecision[str]: ...
@overload
async def achoose_list(
    llm: Llama, prompt: Prompt, choices: Mapping[str, T], **options: Unpack[ListKeywords]
) -> ListDecision[T]: ...
@overload
async def achoose_list(
    llm: Llama, prompt: Prompt, choices: Iterable[T], **options: Unpack[ListKeywords]
) -> ListDecision[T]: ...
@overload
async def achoose_list(
    llm: Llama, prompt: Prompt, choices: object, **options: Unpack[ListKeywords]
) -> ListDecision[Any]: ...
async def achoose_list(llm: Llama, prompt: Prompt, choices: ChoicesLike, **options: Any) -> ListDecision[Any]:
    """Do as `choose_list` does, on a worker thread."""
    decision: ListDecision[Any] = await in_worker(
        lambda: choose_list(llm, prompt, choices, **options), lambda thread: cancel(llm, thread)
    )
    return decision


async def ascore(llm: Llama, prompt: Prompt, choices: ChoicesLike, **options: Any) -> npt.NDArray[np.float64]:
    """Do as `score` does, on a worker thread."""
    return await in_worker(lambda: score(llm, prompt, choices, **options), lambda thread: cancel(llm, thread))
