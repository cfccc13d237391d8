"""Pages of other web sites, which a browser lets ask any server that it can reach.

Host              a name that a site's owner may let point here (DNS rebinding) is refused, unless it was allowed
Origin            a page's script, a form: of this very server, or of a host that was allowed
Sec-Fetch-Site    what a browser says of links, images and the like: from this server, or typed by the user
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from token_trie.serve.refusal import OPENAI, RefusedError

_PRIVATE = (".localhost", ".internal")


class SameOrigin:
    """Refuses requests that pages of other origins make.

    Parameters
    ----------
    app : ASGI application
    hosts : collection of str, optional
        Names of the server besides addresses and names that no web site can have; None: any name is the server's.
    origins : collection of str
        Names of hosts whose pages may ask, too.
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
        status, told = OPENAI.tell(RefusedError("forbidden", why))
        await JSONResponse(told, status)(scope, receive, send)

    def _why_not(self, headers: Headers, path: str) -> str | None:
        host = headers.get("host", "")
        if not self._is_own(host):
            return f"Host: {host[:100]!r} is no name of this server; if it is, start it with --allow-host"
        origin = headers.get("origin")
        if origin is not None:
            if self._is_same(origin, host):
                return None
            return f"Origin: {origin[:100]!r} is another; to let its pages ask, start the server with --allow-host"
        site = headers.get("sec-fetch-site", "none")
        is_visit = path == "/" and headers.get("sec-fetch-mode") == "navigate"  # by a link to the page
        return None if site in ("none", "same-origin") or is_visit else "Sec-Fetch-Site: a page of another origin asks"

    def _is_own(self, host: str) -> bool:
        if self._hosts is None:
            return True
        name = _name_of(f"//{host}")
        return _is_private(name) or name in self._hosts

    def _is_same(self, origin: str, host: str) -> bool:
        own, _, other = origin.partition("://")
        if own in ("http", "https") and other.lower() == host.lower():
            return True
        return _name_of(origin) in self._origins


def _name_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_private(name: str) -> bool:
    """Tell whether no web site can have a name: addresses, names without a dot, and names kept for private use."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(_PRIVATE))
    return True
