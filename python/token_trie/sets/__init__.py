"""Sets of answers: tries, choices in the types of Python programs, and their spelling behind a prompt."""
