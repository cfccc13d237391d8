"""The device that a run is on, and its driver."""

import platform
import re
import subprocess
from dataclasses import dataclass

from token_trie.llama.devices import Device, devices

# As ggml's backends call themselves.
_BACKENDS = {"cpu": {"CPU"}, "vulkan": {"Vulkan"}, "cuda": {"CUDA"}, "metal": {"Metal", "MTL"}}
_NVIDIA = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]


def on(device: str) -> Device | None:
    """Return the first device of a backend, if there is one."""
    return next((each for each in devices() if each.backend in _BACKENDS[device]), None)


def called(name: str) -> Device | None:
    """Return the device that llama.cpp calls so, if there is one."""
    return next((each for each in devices() if each.name == name), None)


@dataclass(frozen=True)
class About:
    """What a result says of a device."""

    backend: str
    name: str  # the processor's or the card's
    driver: str | None  # None: there is none, or the tool that tells it is not installed

    @staticmethod
    def of(device: Device) -> "About":
        """Ask the driver's own tool."""
        return About(device.backend, device.description, _driver(device))

    def __str__(self) -> str:
        return f"{self.backend}, {self.name}" + (f", {self.driver}" if self.driver else "")


def _driver(device: Device) -> str | None:
    if device.backend == "CUDA":
        return _first(_said(_NVIDIA).splitlines())
    if device.backend == "Vulkan":
        blocks = re.split(r"^GPU\d+:$", _said(["vulkaninfo", "--summary"]), flags=re.MULTILINE)
        own = next((block for block in blocks if device.description in block), "")
        return _first(re.findall(r"^\s*driverInfo\s*= (.+)$", own, flags=re.MULTILINE))
    if device.backend in _BACKENDS["metal"]:
        return f"macOS {platform.mac_ver()[0]}"
    return None


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _first(found: list[str]) -> str | None:
    return found[0].strip() if found else None
