"""The options --prompt and --prompt-file."""

from __future__ import annotations

from pathlib import Path

from token_trie.cli.options import read
from token_trie.errors import ArgumentError
from token_trie.sets.template import Template


def read_template(prompt: str | None, prompt_file: Path | None, *, is_needed: bool) -> Template | None:
    """Return the template of --prompt or --prompt-file; None where neither is given, nor needed."""
    if prompt is None and prompt_file is None and not is_needed:
        return None
    if prompt is not None and prompt_file is None:
        return Template(prompt, has_escapes=True)
    if prompt is None and prompt_file is not None:
        return Template(read(prompt_file), has_escapes=False)
    raise ArgumentError("use --question, --prompt or --prompt-file, and not both of the last two")
