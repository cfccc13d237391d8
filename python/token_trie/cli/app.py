"""The command line itself: where commands are declared, and where they print."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import typer
from rich.console import Console

app = typer.Typer(
    help="Make llama.cpp answer with one member of a known set.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
console = Console()
status = Console(stderr=True)


def epilog(*examples: str) -> str:
    """Return what a help text ends in."""
    return "\n\n".join(["**Examples**", *(f"`{example}`" for example in examples)])


def command(*examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command; its parameters that are dataclasses stand for an option a field."""

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, Any] = {}
        options = []
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            if is_dataclass(parameter.annotation):
                groups[parameter.name] = parameter.annotation
                options += _options_of(parameter.annotation)
            else:
                options.append(parameter.replace(kind=parameter.KEYWORD_ONLY))

        @functools.wraps(function)
        def call(**given: Any) -> None:
            made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
            function(**made, **given)

        call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        return app.command(epilog=epilog(*examples))(call)

    return declare


def _options_of(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=types[field.name],
        )
        for field in fields(group)
    ]
