"""The command ``token-trie``, and what a process needs before llama.cpp is loaded into it."""

from __future__ import annotations

import os

__all__ = ["main", "spin_briefly"]


def spin_briefly() -> bool:
    """Make llama.cpp's threads wait asleep, after a short spin, and return whether the environment was changed for it.

    They wait for one another at every operation of a pass. GNU's OpenMP lets them spin there for milliseconds, and
    where another process holds a core, each wait lasts until the scheduler takes it away: a decision of 0.1 s takes
    seconds.
    It reads ``GOMP_SPINCOUNT`` when it is loaded, so call this before ``import llama_cpp``. Whoever has set that, or
    ``OMP_WAIT_POLICY``, has decided.
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
    main()
