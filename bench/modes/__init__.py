"""One module for each mode, each with run(options)."""
