"""What a constrained token costs, beside the other engines that llama.cpp users have."""

from token_trie_command import spin_briefly

spin_briefly()
