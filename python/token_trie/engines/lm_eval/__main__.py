"""The harness's own command line, which knows ``--model token_trie``."""

from lm_eval.__main__ import cli_evaluate

from token_trie.engines.lm_eval import register

if __name__ == "__main__":
    register()
    cli_evaluate()
