from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest

SHOWN = "print(os.environ.get('GOMP_SPINCOUNT'), 'llama_cpp' in sys.modules)"


def environment(**variables: str) -> dict[str, str]:
    mine = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    return {name: value for name, value in os.environ.items() if name not in mine} | variables


def python(code: str, **variables: str) -> str:
    command = [sys.executable, "-c", f"import os, sys\n{code}"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=environment(**variables)
    ).stdout.strip()


@pytest.mark.parametrize(
    ("variables", "seen"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_waiting_threads_sleep_unless_the_user_has_set_otherwise(variables: dict[str, Any], seen: str) -> None:
    code = f"from token_trie_command import spin_briefly; spin_briefly(); {SHOWN}"
    assert python(code, **variables) == f"{seen} False"


def test_the_command_does_so() -> None:
    (command,) = entry_points(group="console_scripts", name="token-trie")
    assert command.value == "token_trie_command:main"
    code = f"""
from token_trie_command import main
sys.argv = ["token-trie", "--version"]
try:
    main()
except SystemExit as end:
    assert not end.code
{SHOWN}"""
    assert python(code).splitlines()[-1] == "1000 True"


def test_a_library_leaves_the_environment_of_its_host_alone() -> None:
    assert python(f"import token_trie; token_trie.choose; {SHOWN}") == "None True"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_the_command_says_which_extra_it_needs(missing: str) -> None:
    code = f"sys.modules[{missing!r}] = None; from token_trie_command import main; main()"
    done = subprocess.run([sys.executable, "-c", f"import sys; {code}"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"token-trie: {missing} is missing; pip install 'token-trie[cli]'\n"
