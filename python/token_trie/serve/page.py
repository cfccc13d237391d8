"""The page at ``/``: one document, which asks this server and nobody else."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response


async def page(request: Request) -> Response:
    """Answer with the page."""
    text, policy = _page()
    headers = {
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return HTMLResponse(text, headers=headers)


@cache
def _page() -> tuple[str, str]:
    """Return the page, and what it may do: run its own script and style, and ask where it came from."""
    style, script = _read("page.css"), "".join(_read(name) for name in _SCRIPTS)
    text = _read("page.html").replace("<style>", f"<style>{style}").replace("<script>", f"<script>{script}")
    policy = [
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
    return text, "; ".join(policy)


_SCRIPTS = ("page.js", "explain.js", "request.js", "start.js")


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
