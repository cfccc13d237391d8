"""Checks of the Origin and Host of requests: only pages of known hosts may send them, by known names."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from token_trie.serve.errors import RefusedError, refused

_PRIVATE = (".localhost", ".internal")


class SameOrigin:
    """Refuses requests that pages of other origins make.

    `hosts` are names of the server, besides addresses and names that no web site can have; None: any name. `origins`
    are other hosts whose pages may send requests.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None, origins: Collection[str]) -> None:
        self._app = app
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._origins = {host.lower() for host in origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        why = self._why_not(Headers(scope=scope), scope["path"]) if scope["type"] == "http" else None
        if why is None:
            await self._app(scope, receive, send)
            return
        await refused(RefusedError("forbidden", why))(scope, receive, send)

    def _why_not(self, headers: Headers, path: str) -> str | None:
        host = headers.get("host", "")
        if not self._is_own(host):
            return f"Host: {host[:100]!r} is no name of this server; if it is, start it with --allow-host"
        origin = headers.get("origin")
        if origin is not None:
            if self._is_same(origin, host):
                return None
            name = name_of(origin) or "NAME"
            return (
                f"Origin: {origin[:100]!r} is another; to let its pages ask, start the server with --allow-host {name}"
            )
        site = headers.get("sec-fetch-site", "none")
        is_visit = path == "/" and headers.get("sec-fetch-mode") == "navigate"  # a link to the page
        return None if site in ("none", "same-origin") or is_visit else "Sec-Fetch-Site: a page of another origin asks"

    def _is_own(self, host: str) -> bool:
        name = name_of(f"//{host}")
        return self._hosts is None or _is_private(name) or name in self._hosts

    def _is_same(self, origin: str, host: str) -> bool:
        scheme, _, other = origin.partition("://")
        if scheme in ("http", "https") and other.lower() == host.lower():
            return True
        return name_of(origin) in self._origins


def name_of(url: str) -> str:
    """Return the host of a URL, in lower case; empty if there is none."""
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_private(name: str) -> bool:
    """Whether no web site can have a name: addresses, names without a dot, and names reserved for private use."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(_PRIVATE))
    return True
