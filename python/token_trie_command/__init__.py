"""The command ``token-trie``, and settings of the process before llama.cpp is loaded."""

from __future__ import annotations

import os
import sys

__all__ = ["main", "spin_briefly"]


def spin_briefly() -> bool:
    """Make llama.cpp's threads sleep after a short spin; return whether the environment was changed.

    Threads wait for each other at every operation of a pass. GNU's OpenMP spins there for milliseconds, so if another
    process occupies a core, a decision of 0.1 s takes seconds. OpenMP reads ``GOMP_SPINCOUNT`` when it is loaded: call
    this before ``import llama_cpp``. A set ``GOMP_SPINCOUNT`` or ``OMP_WAIT_POLICY`` is left unchanged.
    """
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        return False
    os.environ["GOMP_SPINCOUNT"] = "1000"
    return True


def main() -> None:
    """Run the command line."""
    spin_briefly()
    try:
        from token_trie.cli import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        if missing not in ("typer", "rich"):
            raise
        print(f"token-trie: {missing} is missing; pip install 'token-trie[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    main()
