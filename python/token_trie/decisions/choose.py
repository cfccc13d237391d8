"""`choose`: one answer out of a set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from token_trie.decisions.decision import Decision
from token_trie.decisions.native_scores import ENDS, End, check_scorable
from token_trie.decisions.ways import score_whole, search, walk
from token_trie.errors import ArgumentError
from token_trie.llama.chooser import check_room, chooser, fit_set, room_of
from token_trie.native.arguments import check_counts, check_numbers, lookup
from token_trie.native.core import Llama
from token_trie.native.lease import lease
from token_trie.sets.prompt import Prompt
from token_trie.sets.spelling import spell_choices
from token_trie.sets.trie import Tokenization, TokenTrie, check_tokenization

Mode: TypeAlias = Literal["greedy", "sampled", "exact", "aligned", "beam"]
MODES = {"greedy": 0, "sampled": 1, "exact": 2, "aligned": 3, "beam": 4}

SCORED_WHOLE = 4096
"""Nodes of a trie that `choose` scores whole in exact mode; larger ones are searched."""


def choose(
    llm: Llama,
    prompt: Prompt,
    choices: Sequence[str] | TokenTrie,
    *,
    mode: Mode = "greedy",
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    end: End = "longest",
    n_best: int = 1,
    beam_width: int = 16,
    max_nodes: int | None = None,
    leading_space: bool | None = None,
    tokenization: Tokenization = "canonical",
    heal: bool = False,
) -> Decision:
    """Let the model answer a prompt with one of a set.

    The work is done by a `StreamHandle` that is made for the model on the first call and kept as long as the model is:
    the model's own context is not touched, and what a prompt shares with the one before is not evaluated again.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt : str, sequence of int, or sequence of chat messages
        Text is tokenized as `Llama.create_completion` does, messages go through the model's chat template.
    choices : sequence of str, or TokenTrie
        The answers. Texts are tokenized as they follow this very prompt. A trie's sequences follow it as they are.
    mode : {"greedy", "sampled", "exact", "aligned", "beam"}
        "greedy": the best token at each branch point, which is fastest and may miss the most probable answer;
        "sampled": one drawn at random there. "exact": the most probable whole answer. "aligned": one whole answer drawn
        from the model's probabilities for them, which drawing token by token does not do and which takes scoring the
        whole set, however large. "beam": the best answer that
        going on from the beam_width best beginnings of each length finds.
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
    max_nodes : int, optional
        For exact: nodes of the trie to evaluate at most, once an answer is found; `Decision.gap` is what is left
        unproved then. With it, or on a trie of more than 4,096 nodes, the set is searched, best first, and not scored
        whole: probabilities are None.
    leading_space, tokenization
        As for `TokenTrie.from_choices`; for choices given as texts. Exact, aligned and beam are for the canonical
        tokenization alone.
    heal : bool
        With ``tokenization="any"``, for a prompt that may end inside a token, such as in a space or in ``"Fra"``: its
        last token is taken back, and what it spells begins each choice, to be spelled in any way. The tokens of the
        decision then begin there. Choices go on just where the prompt ends: no space is added unless leading_space
        says so. The canonical tokenization always mends the seam by itself.

    Returns
    -------
    Decision

    Raises
    ------
    ArgumentError, VocabularyError, ContextError
        For choices, prompts or options that fit neither each other nor the model.
    BusyError
        Another thread is choosing with this model.
    """
    lookup(mode, MODES, "mode")
    lookup(end, ENDS, "end")
    if prompt is None:
        raise ArgumentError("prompt: None where text, token ids or chat messages belong")
    check_numbers(temperature=temperature, top_p=top_p)
    if not 0 < temperature < float("inf"):
        raise ArgumentError(f"temperature: {temperature} is not above 0; for the best answer use mode='greedy'")
    if not 0 < top_p <= 1:
        raise ArgumentError(f"top_p: {top_p} is not in (0, 1]")
    check_counts(n_best=n_best, beam_width=beam_width, max_nodes=1 if max_nodes is None else max_nodes)
    if seed is not None and (not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**32):
        raise ArgumentError(f"seed: {seed} is not in [0, 2**32)")
    check_tokenization(tokenization)
    if isinstance(choices, TokenTrie) and (heal or tokenization != "canonical"):
        raise ArgumentError("tokenization and heal go with choices given as texts; a TokenTrie has its own tokens")
    if heal and tokenization != "any":
        raise ArgumentError('heal goes with tokenization="any"; the canonical one mends the seam by itself')
    with lease(llm):
        if not isinstance(choices, TokenTrie) and tokenization == "any":
            spelled = spell_choices(llm, prompt, choices, leading_space=leading_space, heal=heal, room=room_of(llm))
            trie, prompt_tokens = TokenTrie._from_texts(llm, choices, spelled.texts), spelled.prompt
        else:
            trie, prompt_tokens = fit_set(llm, prompt, choices, leading_space, room_of(llm))
        if mode not in ("greedy", "sampled"):
            check_scorable(trie)
        check_room(llm, prompt_tokens, trie)
    with chooser(llm) as handle:
        if mode == "greedy" or mode == "sampled":
            handle.set_seed(_ANY_SEED if seed is None else int(seed))
            decision = walk(handle, trie, prompt_tokens, mode, temperature, top_p)
        elif mode == "beam":
            decision = search(handle, trie, prompt_tokens, end, n_best, beam_width, 0)
        elif mode == "exact" and (max_nodes is not None or trie.n_nodes > SCORED_WHOLE):
            decision = search(handle, trie, prompt_tokens, end, n_best, 0, max_nodes or 0)
        else:
            decision = score_whole(handle, trie, prompt_tokens, end, n_best, mode == "aligned", seed)
    if trie is not choices:
        # Equal choices are one leaf.
        decision = replace(decision, index=list(choices).index(decision.value))
    return decision


_ANY_SEED = 0xFFFFFFFF
