"""``token-trie doctor``."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from token_trie.cli.app import command, console, status
from token_trie.cli.findings import Finding, draw
from token_trie.cli.fitness import examine_model
from token_trie.cli.machine import examine_machine
from token_trie.cli.options import JsonOption, ModelOptions

_N_CTX = 2048


@command("token-trie doctor", "token-trie doctor -m model.gguf", "token-trie doctor -m model.gguf --json")
def doctor(model: ModelOptions, as_json: JsonOption = False) -> None:
    """Check whether a model and this machine are suitable for decisions, and tell what to change.

    The command asks some questions with known answers, and times one. The exit status is 1 if something does not work.
    """
    llm = model.load(_N_CTX)
    with status.status(f"examining {model.path.name}"):
        findings = [*examine_model(llm)]
        findings += examine_machine(llm, computes=_all_work(findings))
    works = _all_work(findings)
    if as_json:
        told = {"model": model.path.name, "works": works, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(told, ensure_ascii=False, allow_nan=False))
    else:
        console.print(draw(findings), highlight=False)
    if not works:
        raise typer.Exit(1)


def _all_work(findings: list[Finding]) -> bool:
    return all(finding.verdict != "poor" for finding in findings)
