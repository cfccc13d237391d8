"""Texts for those who read."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text with control characters, line breaks and marks of direction written out."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def percent(p: float) -> str:
    """Probability in percent; never 0 or 100 for what is neither."""
    if 0 < p < 0.0001:
        return "<0.01 %"
    if 0.999 < p < 1:
        return ">99.9 %"
    return f"{100 * p:.0f} %" if p in (0, 1) else f"{100 * p:.{1 if p >= 0.01 else 2}f} %"


def clip(text: str | bytes, width: int = 48) -> str:
    """Text for a label: printable, and not too long."""
    if isinstance(text, bytes):
        text = text.decode(errors="backslashreplace")
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def quote(text: str | bytes) -> str:
    """Text of tokens inside a sentence."""
    return f"“{clip(text)}”"
