"""`explain`, with its results as a tree in a terminal or as a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from token_trie.decisions.run import run
from token_trie.llama.query import LeafEnd
from token_trie.native.core import Llama
from token_trie.questions.explain import Explained, ExplainRequest
from token_trie.sets.choices import ChoicesLike
from token_trie.sets.prompt import Prompt
from token_trie.show.branches import MAX_BRANCHES, Branch, Phrase, branches_of, sentence_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True)
class Explanation(Explained):
    """How a decision comes about: an `Explained` that rich can print and `html` can write."""

    @classmethod
    def of(cls, explained: Explained) -> Explanation:
        """Add the drawing methods to the results."""
        return cls(**vars(explained))

    def html(self, max_branches: int = MAX_BRANCHES) -> str:
        """Return a page in one file, without scripts, which loads nothing from elsewhere.

        Parameters
        ----------
        max_branches : int
            How many branches to draw besides those of the two answers; the most probable ones are drawn.
        """
        from token_trie.show.page import render_explanation

        return render_explanation(self, max_branches)

    def sentence(self) -> list[Phrase]:
        """Say in one sentence where the greedy and the most probable answer diverge."""
        return sentence_of(self)

    def branches(self, max_branches: int = MAX_BRANCHES) -> Branch:
        """Return the root, with the branches of the two answers and the most probable ones below it."""
        return branches_of(self, max_branches)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it in a terminal."""
        from token_trie.show.branches import draw_explanation

        yield draw_explanation(self)


def explain(
    llm: Llama,
    prompt: Prompt,
    choices: ChoicesLike,
    *,
    leaf_end: LeafEnd = "longest",
    leading_space: bool | None = None,
) -> Explanation:
    """Take a decision greedily and exactly, and keep the probability of every branch of the set.

    The whole set is scored, however large it is: every node is evaluated, and nodes before a branch point twice.

    Parameters
    ----------
    llm : llama_cpp.Llama
        The model.
    prompt, choices
        As for `choose`.
    leaf_end : {"longest", "any", "follow"}
        What the probability of an answer contains besides its tokens; see `score`.
    leading_space : bool, optional
        As for `TokenTrie.from_choices`.

    Returns
    -------
    Explanation

    Raises
    ------
    ArgumentError, VocabularyError, ContextError, BusyError
        As for `choose`.
    """
    return Explanation.of(run(llm, prompt, ExplainRequest.read(choices, leaf_end, leading_space)))
