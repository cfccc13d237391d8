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
    """Let the model answer a prompt with one of a set.

    The work is done by a `StreamHandle` that is made for the model on the first call and kept as long as the model is:
    the model's own context is not touched, and what a prompt shares with the one before is not evaluated again.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt : str, sequence of int, or sequence of chat messages
        Text is a template of the caller's, tokenized as `Llama.create_completion` does it: names of control tokens in
        it become these. Messages go through the model's chat template; what they say is text, never control tokens.
    choices : iterable of str, mapping of str to any value, Enum class, range, Literal, or TokenTrie
        The answers, and thereby what `Decision.value` is: the text, the mapping's value, the Enum's member, the number.
        Texts are tokenized as they follow this very prompt; the last sets of them are remembered. The text of an Enum's
        member is its value where all of them are str, else its name; of a bool "true" or "false". A trie's sequences
        follow the prompt as they are.
    **options
        Those of `ChooseOptions`.

    Returns
    -------
    Decision

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        For choices, prompts or options that fit neither each other nor the model.
    BusyError
        This very thread is choosing with this model already, and asks from a callback or a signal's handler.
    CancelledError
        The model was closed meanwhile.

    Notes
    -----
    Threads may choose with one model at the same time. A second one that comes while a first is at work makes a context
    of the Llama's size, which is kept as long as the model is, and from then on those who come together are answered in
    the same batches, as by `choose_many`: up to llama.cpp's rounding, which depends on the size of a batch, with the
    same answers. Those of recurrent and hybrid models wait for their turn.
    """
    return run(llm, prompt, ChoiceRequest.read(choices, ChooseOptions.read("choose", options)))
