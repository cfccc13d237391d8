"""One module a mode, each with run(options)."""
