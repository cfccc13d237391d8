"""Typed questions about a state, with a probability for every possible answer."""
