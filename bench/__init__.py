"""Benchmarks: the cost of a constrained token and decision, beside other engines for llama.cpp."""

from token_trie_command import spin_briefly

spin_briefly()
