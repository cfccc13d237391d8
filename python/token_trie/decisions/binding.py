"""What scores come from: a calibration that was fitted on some holds for others that come from the same alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from token_trie.errors import ArgumentError, CalibrationError
from token_trie.native.core import Llama, _core
from token_trie.native.lease import attachment

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Binding:
    """What a model was asked, and what may be answered.

    Parameters
    ----------
    model : str
        A fingerprint of the model's tensors, and of its adapters.
    llama : str
        The version of llama.cpp.
    asked : str
        How: a template of prompts, or a question in its form; empty where that was not told.
    classes : tuple of str
        What the answers are, for a model, in their order.
    leaf_end : str
        The end rule of the scores.
    """

    model: str
    llama: str
    asked: str
    classes: tuple[str, ...]
    leaf_end: str

    def require(self, other: Binding) -> None:
        """Raise CalibrationError, which names what it is, where something is another; an `asked` not told fits any."""
        for name, what in _NAMES.items():
            own, others = getattr(self, name), getattr(other, name)
            if own != others and not (name == "asked" and not (own and others)):
                raise CalibrationError(f"calibration: was fitted with {what} {_told(own, others)}; fit it anew")

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**dataclasses.asdict(self), "classes": list(self.classes)}

    @classmethod
    def from_dict(cls, given: object) -> Self:
        """Read what `to_dict` gave; CalibrationError, with the place, where it is something else."""
        if not isinstance(given, Mapping):
            raise CalibrationError(f"binding: {type(given).__name__} where an object belongs")
        texts = {name: given.get(name) for name in _NAMES if name != "classes"}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise CalibrationError(f"binding.{name}: {type(value).__name__} where a text belongs")
        classes = given.get("classes")
        if not isinstance(classes, list) or not all(isinstance(text, str) for text in classes):
            raise CalibrationError("binding.classes: a list of texts belongs here")
        return cls(classes=tuple(classes), **texts)  # type: ignore[arg-type]


_NAMES = {
    "model": "another model:",
    "classes": "other answers:",
    "asked": "another question:",
    "leaf_end": "another leaf_end:",
    "llama": "another llama.cpp:",
}


def _told(own: Any, other: Any) -> str:
    if isinstance(own, tuple):
        if len(own) != len(other):
            return f"{len(own):,} of them, where there are {len(other):,}"
        own, other = next((a, b) for a, b in zip(own, other, strict=True) if a != b)
    return f"{_short(own)}, where this is {_short(other)}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}…")


def fingerprint(llm: Llama | None) -> str:
    """Return the fingerprint of a Llama's weights, with its adapter; CalibrationError where there is none."""
    if llm is None:
        raise CalibrationError("calibration: is bound to a Llama's model, and this handle was opened on a file")
    known = attachment(llm).known
    if "fingerprint" not in known:
        adapter = getattr(llm, "lora_path", None)
        try:
            own = _core.tensors_digest(llm.model_path)
            if adapter:
                own += f"+{getattr(llm, 'lora_scale', 1.0)}*{_core.tensors_digest(adapter)}"
        except ArgumentError as error:
            raise CalibrationError(f"calibration: {error}, and it is bound to them") from error
        known["fingerprint"] = own
    found: str = known["fingerprint"]
    return found
