"""A headless Chromium, driven by the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Without its sandbox, which containers seldom allow.
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"),
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # for sites whose names lead to this machine
)
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "ArrowDown": 40, "ArrowUp": 38, "ArrowRight": 39}
SHIFT = 8


class Tab:
    """A page, and what a person does with it."""

    def __init__(self, to: int, come: int) -> None:
        self._to, self._come, self._n, self._rest = to, come, 0, b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._n += 1
        message: dict[str, Any] = {"id": self._n, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            told = self._receive()
            if told.get("id") == self._n:
                assert "error" not in told, (method, told["error"])
                result: dict[str, Any] = told["result"]
                return result
            self.events.append(told)

    def _receive(self) -> Any:
        while b"\0" not in self._rest:
            chunk = os.read(self._come, 1 << 16)
            assert chunk, "the browser has ended"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, url: str) -> None:
        """Load a page."""
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """Return the JSON value of an expression, or of the promise that it is."""
        told = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, script: str, seconds: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, f"not within {seconds} s: {script}"
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Type a text, a key a character."""
        for char in text:
            self.send("Input.dispatchKeyEvent", type="keyDown", text=char, key=char)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=char)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key that has a name."""
        own = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        text = {"Enter": "\r", " ": " "}.get(key)
        self.send("Input.dispatchKeyEvent", type="keyDown", **own, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **own)

    def select_all(self) -> None:
        """Select what the focused field has."""
        self.send("Input.dispatchKeyEvent", type="keyDown", key="a", commands=["selectAll"])
        self.send("Input.dispatchKeyEvent", type="keyUp", key="a")

    def click(self, selector: str) -> None:
        """Click into the middle of an element."""
        find = f"document.querySelector({json.dumps(selector)})"
        x, y = self.run(
            f"(() => {{ const e = {find}; e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Make it so large, in pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )

    def prefer(self, **features: str) -> None:
        """Set what a person prefers: ``prefers_color_scheme="dark"``."""
        told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", features=told)

    def shoot(self, path: Path, *, is_whole: bool = True) -> None:
        """Take a picture."""
        told = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(told["data"]))

    def accessible(self) -> list[tuple[str, str]]:
        """Return role and name of what a screen reader finds, in its order."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")
        ]

    def requested(self) -> list[tuple[str, str]]:
        """Return method and address of all that it has asked for."""
        self.run("0")
        sent = [e["params"]["request"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [(request["method"], request["url"]) for request in sent]

    def complaints(self) -> list[str]:
        """Return errors that its script or the policy of a page has made."""
        self.run("0")
        thrown = [
            e["params"]["exceptionDetails"]["text"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"
        ]
        logged = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        return thrown + [
            entry["text"] for entry in logged if entry["level"] == "error" and entry["source"] != "network"
        ]


# The browser reads from 3 and writes to 4.
_LAUNCH = """
import fcntl, os, sys
ours = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for fd, to in zip(ours, (3, 4)):
    os.dup2(fd, to)
os.execv(sys.argv[3], sys.argv[3:])
"""


@contextmanager
def browsing(profile: Path) -> Iterator[Tab | None]:
    """Start a browser; yield its page, None where there is none."""
    binary = next((found for name in NAMES if (found := shutil.which(name))), None)
    if binary is None:
        yield None
        return
    theirs_in, to = os.pipe()
    come, theirs_out = os.pipe()
    command = [binary, *OPTIONS, "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-pipe"]
    launch = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), *command]
    with subprocess.Popen(launch, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL) as process:
        os.close(theirs_in), os.close(theirs_out)
        try:
            yield Tab(to, come)
        finally:
            os.close(to), os.close(come)
            process.terminate()
