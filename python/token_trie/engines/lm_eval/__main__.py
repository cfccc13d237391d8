"""The harness's command line, with ``--model token_trie`` registered."""

import os
import sys

from token_trie_command import spin_briefly

if __name__ == "__main__":
    if spin_briefly():  # too late here: importing token_trie has loaded llama.cpp
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    from lm_eval.__main__ import cli_evaluate

    from token_trie.engines.lm_eval import register

    register()
    cli_evaluate()
