"""Records by a schema: forced text is written, choices are decided, the rest is generated."""
