"""`choose`: one answer out of a set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from token_trie.decisions.choice import ChoiceRequest
from token_trie.decisions.decision import Decision
from token_trie.decisions.options import ChooseOptions
from token_trie.decisions.runner import run
from token_trie.native.core import Llama
from token_trie.native.options import takes
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from token_trie.decisions.options import ChooseKeywords

T = TypeVar("T")


@overload
def choose(llm: Llama, prompt: Prompt, choices: TokenTrie, **options: Unpack[ChooseKeywords]) -> Decision[str]: ...
@overload
def choose(llm: Llama, prompt: Prompt, choices: Mapping[str, T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
@overload
def choose(llm: Llama, prompt: Prompt, choices: Iterable[T], **options: Unpack[ChooseKeywords]) -> Decision[T]: ...
@overload
def choose(llm: Llama, prompt: Prompt, choices: object, **options: Unpack[ChooseKeywords]) -> Decision[Any]: ...
@takes(ChooseOptions)
def choose(llm: Llama, prompt: Prompt, choices: ChoicesLike, **options: Any) -> Decision[Any]:
    """Let the model answer a prompt with one of several choices.

    The first call makes a `StreamHandle` for the model, which is kept as long as the model. So the model's own context
    is not changed, and the beginning that a prompt shares with the previous prompt is not evaluated again.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt : str, sequence of int, or sequence of chat messages
        A text is tokenized as by `Llama.create_completion`: names of control tokens in it become control tokens.
        Messages go through the model's chat template; their contents are plain text and never become control tokens.
    choices : iterable of str, mapping of str to any value, Enum class, range, Literal, or TokenTrie
        The possible answers. They determine `Decision.value`: the text, the mapping's value, the Enum's member, or the
        number. Texts are tokenized as they follow this prompt; the last sets are remembered. The text of an Enum's
        member is its value if all values are str, else its name. The text of a bool is "true" or "false". The token
        sequences of a `TokenTrie` follow the prompt as they are.
    **options
        Those of `ChooseOptions`.

    Returns
    -------
    Decision

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        Choices, prompt, options and model do not fit together.
    BusyError
        The call comes from a callback or signal handler of a thread that is already choosing with this model.
    CancelledError
        The model was closed during the call.

    Notes
    -----
    Several threads may choose with one model at the same time. The first such call makes a context of the Llama's size,
    which is kept as long as the model. Calls that arrive together are then answered in shared batches, as by
    `choose_many`. The answers are the same up to llama.cpp's rounding, which depends on the size of a batch. With
    recurrent and hybrid models, the calls run one after the other.
    """
    return run(llm, prompt, ChoiceRequest.read(choices, ChooseOptions.read("choose", options)))
