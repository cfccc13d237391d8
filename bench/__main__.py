"""`python -m bench`: parses the command line, hands over to a mode."""

from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from bench.options import Options

app = typer.Typer(add_completion=False, rich_markup_mode="rich", no_args_is_help=True)


class Mode(str, Enum):
    """One a module in bench/modes."""

    sampler = "sampler"


@app.callback(invoke_without_command=True)
def main(
    mode: Annotated[Mode, typer.Option(help="What to measure.")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="smollm2 (49,152 tokens), gemma3 (262,144) or a GGUF file; may be repeated. Default: both."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the results to this JSON file and a plot beside it (.png).")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times that all contenders take turns.")] = 10,
    limit: Annotated[float, typer.Option(min=1, help="Seconds for another engine to take a set in.")] = 20,
) -> None:
    """Measures what a constrained token costs.

    [bold]sampler[/bold]: one sampling step, the constraint alone, and the time to build the set, for 30, 1,000 and
    100,000 members, side by side with GBNF in llama.cpp, llguidance and xgrammar.

    [bold]Examples[/]

        python -m bench --mode sampler --output results/sampler.json

        python -m bench --mode sampler --model smollm2 --rounds 3

        python -m bench --mode sampler --model path/to/model.gguf
    """
    options = Options(models=model or ["smollm2", "gemma3"], output=output, rounds=rounds, limit_s=limit)
    import_module(f"bench.modes.{mode.value}").run(options)


if __name__ == "__main__":
    app(prog_name="python -m bench")
