"""Tool calls: whole records, by token-trie, llama-cpp-python's grammar and llguidance."""
