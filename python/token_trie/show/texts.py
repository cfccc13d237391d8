"""Texts and numbers as people read them."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return a text with control characters, line breaks and marks of direction written out."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def percent(p: float) -> str:
    """Return a probability in percent; it is 0 or 100 only if it is so exactly."""
    if 0 < p < 0.0001:
        return "<0.01 %"
    if 0.999 < p < 1:
        return ">99.9 %"
    return f"{100 * p:.0f} %" if p in (0, 1) else f"{100 * p:.{1 if p >= 0.01 else 2}f} %"


def clip(text: str | bytes, width: int = 48) -> str:
    """Return a text for a label: printable, and not too long."""
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def quote(text: str | bytes) -> str:
    """Return the text of tokens in quotes, for a sentence."""
    return f"“{clip(text)}”"
