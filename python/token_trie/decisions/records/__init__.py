"""Whole records: objects, lists and values by a schema, written where they are no choice, decided where they are."""
