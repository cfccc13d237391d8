"""``token-trie devices``."""

from __future__ import annotations

from dataclasses import asdict

from rich.markup import escape
from rich.table import Table

from token_trie.cli.options import JsonOption, command, console, print_json
from token_trie.llama.contexts import devices as list_devices
from token_trie.native.core import _core, llama_cpp


@command("token-trie devices", "token-trie devices --json")
def devices(as_json: JsonOption = False) -> None:
    """List the devices that llama.cpp can use here, and how it was built."""
    seen = list_devices()
    built_with = llama_cpp.llama_print_system_info().decode(errors="replace").strip()
    if as_json:
        print_json(
            {
                "devices": [asdict(device) for device in seen],
                "built_with": built_with,
                "llama_cpp_python": llama_cpp.__version__,
                "ggml": _core.llama_loaded(),
                "token_trie_compiled_against": _core.llama_compiled(),
                "samples_in_graph": _core.samples_in_graph(),
            }
        )
        return
    table = Table(box=None, header_style="bold")
    for column in ("device", "backend", "kind", "description"):
        table.add_column(column)
    table.add_column("memory", justify="right")
    for device in seen:
        table.add_row(
            escape(device.name),
            escape(device.backend),
            device.kind,
            escape(device.description),
            f"{device.free_bytes / 2**30:.1f} of {device.total_bytes / 2**30:.1f} GiB free",
        )
    console.print(table)
    console.print(
        f"llama-cpp-python {llama_cpp.__version__}, ggml {_core.llama_loaded()}: {built_with}",
        highlight=False,
        markup=False,
    )
