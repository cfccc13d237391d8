"""llguidance, over its own llama.cpp tokenizer bridge."""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from bench.contenders.masks import MaskContender, single_threaded_torch
from bench.models import Model
from bench.sets import Answers

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


@cache
def _tokenizer(model: Model) -> "LLTokenizer":
    from llguidance.llamacpp import lltokenizer_from_vocab

    return lltokenizer_from_vocab(model.vocab)


class LLGuidance(MaskContender):
    """A regular expression of alternatives, its fastest form for a set of plain texts.

    Its "choice" form takes up to twice as long to build. A JSON schema's enum builds faster, but is another language:
    the answers come in quotes. Two functions of the package apply a mask: the one on numpy arrays and, for those who
    have torch and a C++ compiler, the one that torch.compile makes.
    """

    def __init__(self, model: Model, apply: Literal["numpy", "torch"]) -> None:
        super().__init__(model)
        import llguidance.numpy as with_numpy

        self._tokenizer = _tokenizer(model)
        self._fill = with_numpy.fill_next_token_bitmask
        self.mask = with_numpy.allocate_token_bitmask(1, model.n_vocab)
        self._apply: Callable[[], None] = partial(with_numpy.apply_token_bitmask_inplace, model.live_logits, self.mask)
        if apply == "torch":
            import llguidance.torch as with_torch

            torch = single_threaded_torch()
            self._apply = partial(
                with_torch.apply_token_bitmask_inplace,
                torch.from_numpy(model.live_logits),
                torch.from_numpy(self.mask),
            )
        self.apply()  # compiles what is compiled on first use

    def text(self, answers: Answers) -> str:
        """Return the alternatives."""
        return "|".join(map(re.escape, answers.names))

    def build(self, text: str) -> "LLMatcher":
        """Return a matcher of a regular expression."""
        from llguidance import LLMatcher

        return self._matcher(LLMatcher.grammar_from_regex(text))

    def build_lark(self, text: str) -> "LLMatcher":
        """Return a matcher of a grammar, which may hold options."""
        from llguidance import LLMatcher

        return self._matcher(LLMatcher.grammar_from_lark(text))

    def _matcher(self, grammar: str) -> "LLMatcher":
        from llguidance import LLMatcher

        # llguidance reports a grammar that it could not build by a flag.
        matcher = LLMatcher(self._tokenizer, grammar)
        if matcher.is_error():
            raise RuntimeError(matcher.get_error())
        return matcher

    def reset(self, matcher: "LLMatcher") -> None:
        """Return to the beginning."""
        matcher.reset()

    def fill(self, matcher: "LLMatcher") -> None:
        """Fill the mask."""
        self._fill(matcher, self.mask)

    def apply(self) -> None:
        """Apply the mask."""
        self._apply()
