"""The two doors into native code, and what is checked on the way there."""
