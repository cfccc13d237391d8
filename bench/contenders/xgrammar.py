"""xgrammar, over the model's raw token bytes."""

from functools import cache
from typing import TYPE_CHECKING, Literal

from bench.contenders.gbnf import alternatives
from bench.contenders.masks import MaskContender, single_threaded_torch
from bench.models import Model
from bench.sets import Answers

if TYPE_CHECKING:
    from xgrammar import GrammarCompiler, GrammarMatcher


@cache
def _compiler(model: Model) -> "GrammarCompiler":
    import xgrammar

    info = xgrammar.TokenizerInfo(
        model.pieces(),
        vocab_type=xgrammar.VocabType.RAW,
        vocab_size=model.n_vocab,
        stop_token_ids=model.end_tokens(),
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


class XGrammar(MaskContender):
    """EBNF alternatives, its fastest form for a set: a regular expression and a JSON schema's enum take longer.

    backend "cpu" is what the package chooses for logits in main memory, "torch_compile" what is fastest there for those
    who have a C++ compiler. One thread compiles, since on sets like these its default of eight takes longer.
    """

    def __init__(self, model: Model, backend: Literal["cpu", "torch_compile"]) -> None:
        super().__init__(model)
        import xgrammar

        self._xgrammar = xgrammar
        self._compiler = _compiler(model)
        self.mask = xgrammar.allocate_token_bitmask(1, model.n_vocab)
        self._logits = single_threaded_torch().from_numpy(model.live_logits).unsqueeze(0)
        self._backend = backend
        self.apply()  # compiles what is compiled on first use

    def text(self, answers: Answers) -> str:
        """Return the grammar."""
        return alternatives(answers.names)

    def build(self, text: str) -> "GrammarMatcher":
        """Return a matcher."""
        return self._xgrammar.GrammarMatcher(self._compiler.compile_grammar(text))

    def reset(self, matcher: "GrammarMatcher") -> None:
        """Return to the beginning."""
        matcher.reset()

    def fill(self, matcher: "GrammarMatcher") -> None:
        """Fill the mask."""
        matcher.fill_next_token_bitmask(self.mask)

    def apply(self) -> None:
        """Apply the mask."""
        self._xgrammar.apply_token_bitmask_inplace(self._logits, self.mask, backend=self._backend)
