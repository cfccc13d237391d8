"""`python -m bench`: parses the command line and runs a mode."""

import os
from argparse import Namespace
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from bench.results import page as page_of

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True)


class Device(str, Enum):
    """Backends of llama.cpp."""

    cpu = "cpu"
    vulkan = "vulkan"
    cuda = "cuda"
    metal = "metal"


class Mode(str, Enum):
    """Modes: modules of bench/modes, and the contenders of decide alone."""

    sampler = "sampler"
    decide = "decide"
    free = "free"
    strict_guided = "strict-guided"
    strict_trie = "strict-trie"
    strict_trie_ffi = "strict-trie-ffi"
    score = "score"
    record = "record"
    extraction = "extraction"
    tools = "tools"
    mask = "mask"
    many = "many"
    questions = "questions"
    calibration = "calibration"
    catalogue = "catalogue"
    serve = "serve"


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    mode: Annotated[Mode | None, typer.Option(help="What to measure.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="smollm2 (49,152 tokens), gemma3 (262,144), qwen05 or qwen15 (Qwen2.5-Coder 0.5B and 1.5B Instruct, "
            "fetched once) or a GGUF file; may be repeated. Default: the first two."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the results to this JSON file and a plot beside it (.png).")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Times that all contenders take turns. Each mode has its own default.")
    ] = None,
    limit: Annotated[float, typer.Option(min=1, help="sampler: seconds for another engine to take a set in.")] = 20,
    prompt: Annotated[str | None, typer.Option(help="Decisions: a prompt instead of the bundled requests.")] = None,
    token_tree_descriptor: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Decisions: a TokenTreePayload, instead of the bundled sets."),
    ] = None,
    n_gpu_layers: Annotated[int, typer.Option(min=-1, help="Layers on the GPU; -1 for all.")] = 0,
    device: Annotated[
        Device | None,
        typer.Option(help="Decisions, score: all layers on a device of this backend; exit status 2 without one."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of llama.cpp, in batches of any size. Default: one for two cores."),
    ] = None,
    prompts: Annotated[
        int,
        typer.Option(
            min=1, help="many: prompts; calibration: rows of a table (500); extraction, tools: cases at most."
        ),
    ] = 512,
    members: Annotated[
        list[int] | None,
        typer.Option(min=100_000, help="catalogue: members; may be repeated. Default: 100,000, a million, 10 million."),
    ] = None,
) -> None:
    r"""Measure what a constrained token, and a constrained decision, cost.

    [bold]sampler[/bold]: one sampling step, the constraint alone, and the time to build the set, for 30, 1,000 and
    100,000 members, side by side with GBNF in llama.cpp, llguidance and xgrammar.

    [bold]decide[/bold]: whole decisions after an evaluated prompt: 63 agent requests over 30 actions, 8 labels,
    1,000 ids; free text, a GBNF grammar in llama-cpp-python (strict-guided), the trie as a sampler there (strict-trie)
    and in a StreamHandle (strict-trie-ffi). Each of these is also a mode.

    [bold]score[/bold]: the probability of whole answers: 30 actions as one tree and one by one; the two forms of score
    and greedy decoding over the 63 requests; the best of 100,000 names of places.

    [bold]record[/bold]: 100 tool calls with their arguments and 63 records, beside llama-cpp-python's grammar of the
    schema and llguidance with its fast-forward tokens.

    [bold]extraction[/bold]: records that 63 texts state, of six kinds of schema, beside llama-cpp-python's grammar of
    the schema, and outlines if it is installed: right, empty lists, time (qwen05, qwen15).

    [bold]tools[/bold]: 50 requests with 12 tools and 20 with 6, beside two ways of llama-cpp-python; some need none;
    and the turns after a call (qwen05, qwen15).

    [bold]mask[/]: masks for batches of 1 to 256 rows, of 30 to 1,000,000 members: bits filled on the host beside
    xgrammar and llguidance, and applied; tensors on a torch device; prefix_allowed_tokens_fn of transformers.

    [bold]many[/bold]: 1 to 512 prompts at once: choose_many beside a loop of choose, a loop of create_completion with
    GBNF, and llama.cpp's bare passes for the same tokens. The loops answer 17 prompts.

    [bold]questions[/bold]: 20 questions about a state of 1,500 tokens, beside llama.cpp's bare passes for the same
    tokens and calls of choose; a question with 1,000 options, beside score.

    [bold]calibration[/bold]: tables with gold labels (Banking77's 20 most frequent intents, CLINC150's domains, even
    and skewed), as a question and after examples: how often each way of making probabilities is right, log loss, ECE.

    [bold]catalogue[/bold]: sets of 100,000 to 10 million ids (--members: more): bytes, build, open, filter, step, and
    candidates on tensors, beside marisa-trie (pip install marisa-trie) and STATIC (the environment variable STATIC_DIR
    names its checkout); 200,000 titles as texts: build, a decision, the ten best.

    [bold]serve[/bold]: servers on loopback under 1, 8 and 32 clients: records, calls of tools, choices, decisions (also
    between a million titles, with a filter) and plain text of token-trie serve, llama.cpp's own server (the environment
    variable LLAMA_SERVER, or built from the sources in llama-cpp-python's sdist, by cmake) and llama-cpp-python's (pip
    install 'llama-cpp-python\[server]').
    """
    if context.invoked_subcommand is not None:
        return
    if mode is None:
        raise typer.BadParameter("one is needed, or the command page", param_hint="--mode")
    if device is not None:
        if import_module("bench.models").device_of(device.value) is None:
            typer.echo(f"--device {device.value}: llama.cpp sees none here; see token-trie devices", err=True)
            raise typer.Exit(2)
        n_gpu_layers = 0 if device is Device.cpu else -1
    options = Namespace(**context.params)
    options.mode, options.n_gpu_layers, options.device = mode.value, n_gpu_layers, device and device.value
    options.models = model or ["smollm2", "gemma3"]
    # llama-cpp-python's own number for one-token passes. For larger batches it takes a thread a core, which wait
    # for one another in a loop: where another process holds a core, a pass then takes up to seconds.
    options.threads = threads or max((os.cpu_count() or 1) // 2, 1)
    module = "decide" if mode.value.startswith(("free", "strict")) else mode.value
    import_module(f"bench.modes.{module}").run(options)


@app.command()
def page(
    results: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="JSON files of any mode.")],
    output: Annotated[Path, typer.Option(help="The page, in Markdown.")] = Path("docs/benchmarks.md"),
) -> None:
    """Write the page of benchmarks from the results of runs."""
    output.write_text(page_of(results, output.parent), encoding="utf-8")


if __name__ == "__main__":
    app(prog_name="python -m bench")
