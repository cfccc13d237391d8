"""Whole decisions: a prompt that is evaluated already, and an answer out of a set."""
