"""`choose`: one answer out of a set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

from token_trie.decisions.answers import ask
from token_trie.decisions.batched import decide_in, question_of
from token_trie.decisions.calibration import prior
from token_trie.decisions.decision import Decision
from token_trie.decisions.how import ANY_SEED, MAX_NODES, Mode, Options, check_decidable, decide, read_options
from token_trie.decisions.native_scores import End
from token_trie.decisions.think import Think, ask_behind_thought
from token_trie.errors import ArgumentError
from token_trie.llama.chooser import check_room, chooser, room_of
from token_trie.llama.company import company_of
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.sets.spelling import Tokenization
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


@overload
def choose(llm: Llama, prompt: Prompt, choices: TokenTrie, **options: Unpack[Options]) -> Decision[str]: ...
@overload
def choose(llm: Llama, prompt: Prompt, choices: Mapping[str, T], **options: Unpack[Options]) -> Decision[T]: ...
@overload
def choose(llm: Llama, prompt: Prompt, choices: Iterable[T], **options: Unpack[Options]) -> Decision[T]: ...
@overload
def choose(llm: Llama, prompt: Prompt, choices: object, **options: Unpack[Options]) -> Decision[Any]: ...
def choose(
    llm: Llama,
    prompt: Prompt,
    choices: ChoicesLike,
    *,
    mode: Mode | None = None,
    probabilities: bool = False,
    calibrate: Prompt | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    end: End = "longest",
    n_best: int = 1,
    beam_width: int = 16,
    max_nodes: int | None = MAX_NODES,
    timeout: float | None = None,
    leading_space: bool | None = None,
    tokenization: Tokenization = "canonical",
    heal: bool = False,
    think: Think | None = None,
) -> Decision[Any]:
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
    mode : {"exact", "greedy", "sampled", "aligned", "beam"}, optional
        "exact", the default: the most probable whole answer, proved as far as max_nodes goes. "greedy": the best token
        at each branch point, which is fastest, may miss the most probable answer, and is the default for any
        tokenization; "sampled": one drawn at random there. "aligned": one whole answer drawn from the model's
        probabilities for them, which drawing token by token does not do. "beam": the best answer that going on from the
        beam_width best beginnings of each length finds.
    probabilities : bool
        For exact: score the whole set, however large, in place of searching it, for `Decision.probabilities` and what
        is made of them. Aligned mode always does.
    calibrate : str, sequence of int, or sequence of chat messages, optional
        For exact and aligned: the prompt without its content, such as with an empty request. What the model answers
        there anyway is taken out: answers are weighed by their score less that behind this prompt (contextual
        calibration, Zhao et al. 2021), and so are the probabilities; `logprob` and coverage stay the model's own.
        Scores the whole set. Helps small models that favour some answers, and harms where the model needs no help.
    temperature, top_p : float
        For sampled mode, as everywhere in llama.cpp; temperature above 0, top_p in (0, 1].
    seed : int, optional
        For sampled and aligned mode: the same seed draws the same answer.
    end : {"longest", "any", "follow"}
        For exact, aligned and beam: what the probability of an answer has beside its tokens; see `score`. By default
        that the text does not go on towards a longer answer.
    n_best : int
        For exact and beam: answers to return as candidates.
    beam_width : int
        For beam.
    max_nodes : int or None
        For exact: nodes of the trie to evaluate about, before the best answer until then is given; None: as many as the
        proof needs. Good answers come first; among hundreds of thousands of improbable ones a proof takes thousands.
        `Decision.proved` and `Decision.gap` tell, and a warning does once (logger ``token_trie.search``).
    timeout : float, optional
        For exact: likewise, seconds from the prompt's last token on, looked at between passes.
    leading_space, tokenization
        As for `TokenTrie.from_choices`; for choices given as texts. Exact, aligned and beam are for the canonical
        tokenization alone.
    heal : bool
        With ``tokenization="any"``, for a prompt that may end inside a token, such as in a space or in ``"Fra"``: its
        last token is taken back, and what it spells begins each choice, to be spelled in any way. The tokens of the
        decision then begin there. Choices go on just where the prompt ends: no space is added unless leading_space
        says so. The canonical tokenization always mends the seam by itself.
    think : Think, optional
        Lets the model write freely up to a marker first, for `Decision.thought`. The answer, in any mode, follows the
        marker, and choices are tokenized as they follow that.

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
    same answers. Decisions that `calibrate`, and those of recurrent and hybrid models, wait for their turn.
    """
    if prompt is None:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    choices, how = read_options(
        choices,
        mode=mode,
        probabilities=probabilities,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        end=end,
        n_best=n_best,
        beam_width=beam_width,
        max_nodes=max_nodes,
        timeout=timeout,
        leading_space=leading_space,
        tokenization=tokenization,
        heal=heal,
        think=think,
        is_calibrated=calibrate is not None,
    )
    spelled: Any = {"leading_space": leading_space, "tokenization": tokenization, "heal": heal}
    with lease(llm):
        tokens, answers = ask(llm, prompt, choices, **spelled)
        check_decidable(answers, how)
        check_room(room_of(llm), len(tokens), answers.trie)
        empty, behind = ([], answers) if calibrate is None else ask(llm, calibrate, choices, **spelled)
        check_room(room_of(llm), len(empty), behind.trie)
    if calibrate is None:
        company = company_of(llm)
        if company is not None:
            with lease(llm):
                question = question_of(llm, tokens, choices, answers, how)
            return decide_in(company, question)
    with chooser(llm) as handle:
        if how.mode == "sampled" and seed is None:
            handle.set_seed(ANY_SEED)
        if think is not None:
            seeded = ANY_SEED if seed is None else seed
            thought, tokens, answers = ask_behind_thought(llm, handle, tokens, think, seeded, choices, **spelled)
            return replace(decide(handle, answers, tokens, how), thought=thought)
        taken_out = None if calibrate is None else prior(llm, handle, answers, empty, behind, end)
        return decide(handle, answers, tokens, how, taken_out)
