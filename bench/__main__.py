"""`python -m bench`: parses the command line, hands over to a mode."""

import os
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from bench.options import Options

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True)


class Device(str, Enum):
    """Backends of llama.cpp."""

    cpu = "cpu"
    vulkan = "vulkan"
    cuda = "cuda"
    metal = "metal"


class Mode(str, Enum):
    """What there is to measure."""

    sampler = "sampler"
    decide = "decide"
    any_spelling = "any"
    score = "score"
    record = "record"
    mask = "mask"
    many = "many"
    forms = "forms"
    coherence = "coherence"
    serve = "serve"
    questions = "questions"
    calibration = "calibration"
    catalogue = "catalogue"
    free = "free"
    strict_guided = "strict-guided"
    strict_trie = "strict-trie"
    strict_trie_ffi = "strict-trie-ffi"

    @property
    def module(self) -> str:
        """Module of bench/modes that measures it."""
        of_decisions = (Mode.free, Mode.strict_guided, Mode.strict_trie, Mode.strict_trie_ffi)
        return "decide" if self in of_decisions else self.name


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    mode: Annotated[Mode | None, typer.Option(help="What to measure.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="smollm2 (49,152 tokens), gemma3 (262,144) or a GGUF file; may be repeated. Default: both."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the results to this JSON file and a plot beside it (.png).")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Times that all contenders take turns. Default: 10; decisions, many: 1, score: 2."),
    ] = None,
    limit: Annotated[float, typer.Option(min=1, help="sampler: seconds for another engine to take a set in.")] = 20,
    prompt: Annotated[
        str | None, typer.Option(help="Decisions: ask this instead of the bundled requests.", show_default=False)
    ] = None,
    token_tree_descriptor: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Decisions: a TokenTreePayload, instead of the bundled sets."),
    ] = None,
    n_gpu_layers: Annotated[int, typer.Option(min=-1, help="Decisions: layers on the GPU; -1 for all.")] = 0,
    device: Annotated[
        Device | None,
        typer.Option(help="Decisions, score: all layers on a device of this backend; exit status 2 without one."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Decisions, score, many: threads of llama.cpp, in batches of any size. Default: one for two cores.",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="many: prompts at most.")] = 512,
    members: Annotated[
        list[int] | None,
        typer.Option(min=1000, help="catalogue: members; may be repeated. Default: 100,000, a million, 10 million."),
    ] = None,
) -> None:
    r"""Measure what a constrained token, and a constrained decision, cost.

    [bold]sampler[/bold]: one sampling step, the constraint alone, and the time to build the set, for 30, 1,000 and
    100,000 members, side by side with GBNF in llama.cpp, llguidance and xgrammar.

    [bold]free[/bold], [bold]strict-guided[/bold], [bold]strict-trie[/bold], [bold]strict-trie-ffi[/bold]: whole
    decisions of a model whose prompt is evaluated already, by free text, a GBNF grammar in llama-cpp-python, the trie
    as a sampler there, or the trie in a streaming handle over cffi; 63 agent requests over 30 actions, 8 labels and
    1,000 ids. The grammar takes turns with each, to compare with.

    [bold]decide[/bold]: all of these, taking turns, what token-trie promises, and 10,000 draws from random sets.

    [bold]score[/bold]: the probability of whole answers: 30 actions as one tree, one by one, and by create_completion;
    the two forms of score and greedy decoding over the 63 requests; the best of 100,000 names of places.

    [bold]record[/bold]: 100 tool calls with their arguments, beside llama-cpp-python's grammar of the schema and
    llguidance with its fast-forward tokens.

    [bold]many[/bold]: 1 to 512 prompts at once, that share their beginning or nothing: choose_many beside a loop of
    choose, a loop of create_completion with GBNF, and llama.cpp's bare passes for the same tokens, all from a beginning
    that is new to them; of a loop, 17 prompts are asked.

    [bold]forms[/bold]: questions whose answers are known (JevBench's, sys1bench's, the bundled requests), in several
    forms, with and without the contextual prior, and beside typed-gguf: share that is right, log loss, calibration. It
    needs pip install jevbench==0.1.0 sys1bench==0.3.2, and typed-gguf==0.3.0 where that is to take part.

    [bold]coherence[/bold]: the relations of JevBench that answers keep by construction, each reproducible and none
    remembered. It needs pip install jevbench==0.1.0.

    [bold]questions[/bold]: 20 questions about a state of 1,500 tokens, beside llama.cpp's bare passes for the same
    tokens and 20 calls of choose; a question with 1,000 options, beside score.

    [bold]calibration[/bold]: tables with gold labels (Banking77's 20 most frequent intents, CLINC150's domains, even
    and skewed), as a question and behind examples, by each way of making probabilities: share that is right, log loss,
    Brier, ECE; and 300 labels of Banking77 with all other rows to judge by. --prompts: rows of each table, 500.

    [bold]catalogue[/bold]: sets of 100,000 to 10 million ids (--members: more): bytes, build, open, filter, step, and
    candidates on tensors beside STATIC, whose checkout the environment variable STATIC_DIR names, and marisa-trie (pip
    install marisa-trie); 200,000 titles as texts: build, a decision, the ten best.

    [bold]serve[/bold]: servers on loopback under 1, 8, 32 and 128 clients: token-trie serve beside llama-cpp-python's
    server with GBNF (pip install 'llama-cpp-python\[server]'), and, where the environment variable LLAMA_SERVER names
    it, llama.cpp's own with GBNF and callo in front of it (pip install callo).

    [bold]any[/]: tokenization="any", all tokens that spell a member: the allowed sets beside llguidance's and
    xgrammar's in 2,000 random cases, 200 greedy decisions beside GBNF in llama-cpp-python, and the time to build.

    [bold]mask[/]: masks for batches of 1 to 256 rows, of 30 to 1,000,000 members: bits filled on the host beside
    xgrammar and llguidance, and applied; tensors on a torch device; prefix_allowed_tokens_fn of transformers.

    [bold]Examples[/]

        python -m bench --mode sampler --output results/sampler.json

        python -m bench --mode decide --output results/decide.json

        python -m bench --mode strict-trie-ffi --model path/to/model.gguf --prompt "The capital of France is"
        --token-tree-descriptor cities.json --output results/cities.json

        python -m bench report results/a.json results/b.json --output results/report.png
    """
    if context.invoked_subcommand is not None:
        return
    if mode is None:
        raise typer.BadParameter("one is needed, or the command report", param_hint="--mode")
    if device is not None:
        if not import_module("bench.device").on(device.value):
            typer.echo(f"--device {device.value}: llama.cpp sees none here; see token-trie devices", err=True)
            raise typer.Exit(2)
        n_gpu_layers = 0 if device is Device.cpu else -1
    options = Options(
        mode=mode.value,
        models=model or ["smollm2", "gemma3"],
        output=output,
        rounds=rounds,
        limit_s=limit,
        prompt=prompt,
        descriptor=token_tree_descriptor,
        n_gpu_layers=n_gpu_layers,
        device=device.value if device else None,
        # llama-cpp-python's own number for one-token passes. For larger batches it takes a thread a core, which wait
        # for one another in a loop: where another process holds a core, a pass then takes up to seconds.
        threads=threads or max((os.cpu_count() or 1) // 2, 1),
        prompts=prompts,
        members=members,
    )
    import_module(f"bench.modes.{mode.module}").run(options)


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="JSON files of decisions.")],
    output: Annotated[Path | None, typer.Option(help="Write the picture to this PNG file.")] = None,
) -> None:
    """Turn the results of several runs into one table and one picture."""
    import_module("bench.decisions.report").run(results, output)


@app.command()
def page(
    results: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="JSON files of any mode.")],
    output: Annotated[Path, typer.Option(help="The page, in Markdown.")] = Path("docs/benchmarks.md"),
) -> None:
    """Write the page of benchmarks from the results of runs."""
    output.write_text(import_module("bench.outcome").page(results, output.parent), encoding="utf-8")


if __name__ == "__main__":
    app(prog_name="python -m bench")
