"""JevBench's relations between answers: which of them hold."""

from typing import Any

from token_trie.decisions.questions.decide import decide
from token_trie.decisions.questions.question import Choice, Predicate

from bench.forms.coherence import RELATIONS, CoherenceRow, measure
from bench.forms.tables import question_of
from bench.models import find, load
from bench.options import Options
from bench.outcome import show
from bench.results import Bar, Results
from bench.table import model_bars, table_of, wide_console

_N_CTX, _N_BATCH = 4096, 512
_COLUMNS = """
    model = {0.model} | relation = {0.relation} | >tests = {0.tests} | >held = {0.held} |
    >largest deviation = {0.deviation:.1e}
"""


def run(options: Options) -> None:
    """Ask JevBench's small suite of all models; print, and write what was asked for."""
    results = Results[CoherenceRow]("coherence", {"threads": options.threads, "reproducible": True})
    console = wide_console(130)
    for name, begin, advance in model_bars(options.models, console):
        model = load(name, n_ctx=_N_CTX, n_batch=_N_BATCH, n_gpu_layers=options.n_gpu_layers, threads=options.threads)

        def answer(state: Any, questions: dict[str, Any], llm: Any = model.llm) -> dict[str, Any]:
            asked = {key: question_of(question) for key, question in questions.items()}
            found = decide(llm, state, asked, reproducible=True)
            return {key: _wire(asked[key], one) for key, one in found.items()}

        results.rows += measure(find(name).stem, answer, lambda n: begin("cases", n), advance)  # noqa: B023
        if options.output is not None:
            results.save(options.output)
    results.bars = [
        Bar(f"{row.relation}, {row.model}: tests that hold", row.held / row.tests, True, 1, "%")
        for row in results.rows
        if row.tests
    ]
    table = table_of(results.rows, f"{len(RELATIONS)} relations of JevBench", _COLUMNS)
    show(console, [table], results, options.output)


def _wire(question: Any, answer: Any) -> dict[str, Any]:
    """Return an answer in System One's format."""
    if isinstance(question, Predicate):
        return {"type": "noul", "noul": answer.probability}
    p = {str(value): share for value, share in answer.probabilities.items()}
    told = {"probabilities": p, "confidence": answer.confidence}
    if isinstance(question, Choice):
        return {"type": "choice", "choice": answer.value, **told}
    return {"type": "score", "score": answer.score, "legend": {str(k): v for k, v in answer.legend.items()}, **told}
