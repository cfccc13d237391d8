"""Typed questions about a state, and a probability for every answer they may have."""
