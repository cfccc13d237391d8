"""Sets of answers: tries, choices of Python types, and their tokenization after a prompt."""
