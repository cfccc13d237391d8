"""`python -m bench`: parses the command line and runs a mode."""

import os
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.results import page as page_of

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True)

Device = Literal["cpu", "vulkan", "cuda", "metal"]
Mode = Literal[  # modules of bench/modes; the first two are one, strict
    "strict-guided", "strict-trie-ffi",
    "sampler", "decide", "score", "record", "tools", "mask", "many", "questions", "calibration", "catalogue", "serve",
    "states", "schemas", "bfcl", "verbatim", "sysone",
]  # fmt: skip
CalibrationTable = Literal["banking20", "domains", "domains_skewed", "support", "banking77", "clinc150", "massive"]


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    mode: Annotated[Mode | None, typer.Option(help="What to measure.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="smollm2, gemma3, qwen05 or qwen15 (downloaded once, 0.5 and 1.1 GB), or a GGUF file; repeatable. "
            "Default: the first two; for bfcl, verbatim and sysone: qwen15; for states: lfm2-350m and qwen3-350m; for "
            "schemas: qwen3-tiny. These, granite-4-h-350m and qwen3.5-0.8b are written once, with random weights."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the results to this JSON file and a plot beside it (.png).")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Times that all contenders take turns. Each mode has its own default.")
    ] = None,
    limit: Annotated[float, typer.Option(min=1, help="sampler: seconds for another engine to take a set in.")] = 20,
    device: Annotated[
        Device, typer.Option(help="Backend of the device that has all layers; exit status 2 without one.")
    ] = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of llama.cpp, in batches of any size. Default: one for two cores."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="strict: a prompt in place of the 63 bundled requests.", show_default=False)
    ] = None,
    token_tree_descriptor: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="strict: a TokenTreePayload in place of the 30 actions."),
    ] = None,
    cases: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="many: prompts (512); calibration: rows of a table (500); tools: cases at most; "
            "bfcl: cases of a category (60); verbatim: documents at most (30); sysone: cases of a suite (a fourth).",
        ),
    ] = None,
    table: Annotated[
        CalibrationTable | None,
        typer.Option(help="calibration: one table. Default: the first four; the others are cloned once."),
    ] = None,
    members: Annotated[
        list[int] | None,
        typer.Option(min=100_000, help="catalogue: members; may be repeated. Default: 100,000, a million, 10 million."),
    ] = None,
) -> None:
    r"""Measure what a constrained token, and a constrained decision, cost.

    [bold]strict-guided[/bold]: whole decisions of one model (default: smollm2) among 30 actions or your own set, by
    llama.cpp's GBNF grammar of the same texts. The JSON has mode, model, skip_ratio_mean and skip_ratio_std (share of
    the vocabulary that the set leaves out, a step inside it; null for a grammar), tokens_per_second,
    tokens_per_second_vs_grammar, token_accuracy (share of decisions that a greedy walk in plain Python over
    llama-cpp-python's logits makes too), forward_passes_total, forward_passes_saved (of one for each token).

    [bold]strict-trie-ffi[/bold]: the same by the functions of token_trie.h over cffi, as any foreign host calls them:
    forced tokens cost no pass. Takes turns with the grammar.

    [bold]sampler[/bold]: one sampling step, the constraint alone, and the time to build the set, for 30, 1,000 and
    100,000 members, side by side with GBNF in llama.cpp, llguidance and xgrammar.

    [bold]decide[/bold]: whole decisions after an evaluated prompt: 63 agent requests over 30 actions, 8 labels,
    1,000 ids; free text, a GBNF grammar in llama-cpp-python (strict-guided), the trie as a sampler there (strict-trie)
    and in a StreamHandle (strict-trie-ffi).

    [bold]score[/bold]: the probability of whole answers: 30 actions as one tree and one by one; the two forms of score
    and greedy decoding over the 63 requests; the best of 100,000 names of places.

    [bold]record[/bold]: 100 tool calls with their arguments and 63 records, beside llama-cpp-python's grammar of the
    schema and llguidance with its fast-forward tokens.

    [bold]tools[/bold]: 50 requests with 12 tools and 20 with 6, beside two ways of llama-cpp-python; some need none;
    and the turns after a call, for models of half a billion parameters or more.

    [bold]mask[/]: masks for batches of 1 to 256 rows, of 30 to 1,000,000 members: bits filled on the host beside
    xgrammar and llguidance, and applied; tensors on a torch device.

    [bold]many[/bold]: 1 to 512 prompts at once: choose_many beside a loop of choose, a loop of create_completion with
    GBNF, and llama.cpp's bare passes for the same tokens. The loops answer 17 prompts.

    [bold]questions[/bold]: 20 questions about a state of 1,500 tokens, beside llama.cpp's bare passes for the same
    tokens and calls of choose; a question with 1,000 options, beside score.

    [bold]calibration[/bold]: tables with gold labels (Banking77's 20 most frequent intents, CLINC150's domains, even
    and skewed), as a question and after examples: how often each way of making probabilities is right, log loss, ECE.
    With --table banking77, clinc150 or massive: test rows of all their classes, as a question.

    [bold]catalogue[/bold]: sets of 100,000 to 10 million ids (--members: more): bytes, build, open, filter, step, and
    candidates on tensors, beside marisa-trie (pip install marisa-trie) and STATIC (the environment variable STATIC_DIR
    names its checkout); 200,000 titles as texts: build, a decision, the ten best.

    [bold]serve[/bold]: servers on loopback under 1, 8 and 32 clients: records, calls of tools, choices, decisions (also
    between a million titles, with a filter) and plain text of token-trie serve, of llama.cpp's own server (on the PATH,
    in the environment variable LLAMA_SERVER, or built once), and of llama-cpp-python's (its extra `server`).

    [bold]states[/bold]: choices, scores, records and questions on prompts that share their beginning, as parts of a
    cold choose of the same model, with states or dense; rows, passes and bytes of states copied, counted (on Linux).

    [bold]schemas[/bold]: the JSON Schema Test Suite (out of jsonschema's source distribution, downloaded once): schemas
    taken and their values that can be written, beside llguidance and llama.cpp's converter; what a model writes.

    [bold]bfcl[/bold]: cases of the Berkeley Function Calling Leaderboard (out of its package, downloaded once), judged
    by its own checker: choose_tool beside llama-cpp-python's free text through the model's template.

    [bold]verbatim[/bold]: fields of 30 documents of six kinds, verbatim beside free strings: values that stand in the
    text, and that are right.

    [bold]sysone[/bold]: a fourth of sysone-bench v2 (cloned once): choices, predicates and scores of nine suites, by
    decide, beside its published accuracies.
    """
    if context.invoked_subcommand is not None:
        return
    if mode is None:
        raise typer.BadParameter("one is needed, or the command page", param_hint="--mode")
    if import_module("bench.models").device_of(device) is None:
        typer.echo(f"--device {device}: llama.cpp sees none here; see token-trie doctor", err=True)
        raise typer.Exit(2)
    options = Namespace(**context.params)
    is_strict = mode.startswith("strict")
    defaults = {
        "states": ["lfm2-350m", "qwen3-350m"],
        "schemas": ["qwen3-tiny"],
        "bfcl": ["qwen15"],
        "verbatim": ["qwen15"],
        "sysone": ["qwen15"],
    }
    options.models = model or (["smollm2"] if is_strict else defaults.get(mode, ["smollm2", "gemma3"]))
    if is_strict and len(options.models) > 1:
        raise typer.BadParameter("one model for this mode", param_hint="--model")
    # llama-cpp-python's own number for one-token passes. For larger batches it takes a thread a core, which wait
    # for one another in a loop: where another process holds a core, a pass then takes up to seconds.
    options.threads = threads or max((os.cpu_count() or 1) // 2, 1)
    import_module("bench.modes.strict" if is_strict else f"bench.modes.{mode}").run(options)


@app.command()
def page(
    results: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="JSON files of any mode.")],
    output: Annotated[Path, typer.Option(help="The page, in Markdown.")] = Path("docs/benchmarks.md"),
) -> None:
    """Write the page of benchmarks from the results of runs."""
    output.write_text(page_of(results, output.parent), encoding="utf-8")


if __name__ == "__main__":
    app(prog_name="python -m bench")
