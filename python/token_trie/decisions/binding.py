"""What scores come from: a calibration that was fitted on some holds for others that come from the same alone."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from token_trie.errors import ArgumentError, CalibrationError, TokenTrieError
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.llama_facts import registered_chat_handler, values_of
from token_trie.native.loaded import adapter_file, adapters_of, digest_of_model, model_file
from token_trie.sets.chat_form import has_chat_template
from token_trie.sets.prompt import tokenize_prompt
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Binding:
    """What a model was asked, and what may be answered.

    Parameters
    ----------
    model : str
        The digest of the model's files, and what else of a Llama changes a result; see `fingerprint`.
    llama : str
        The version of llama.cpp.
    asked : str
        How: a template of prompts, or a question in its form; empty where that was not told.
    classes : tuple of str
        What the answers are, for a model, in their order.
    leaf_end : str
        The end rule of the scores.
    spelled : str
        How the answers are spelled in tokens, if not as usual; see `spelled_as`.
    """

    model: str
    llama: str
    asked: str
    classes: tuple[str, ...]
    leaf_end: str
    spelled: str = ""

    def require(self, other: Binding) -> None:
        """Raise CalibrationError, which names what it is, where something is another; an `asked` not told fits any."""
        for name, what in _NAMES.items():
            own, others = getattr(self, name), getattr(other, name)
            if own != others and not (name == "asked" and not (own and others)):
                raise CalibrationError(f"calibration: was fitted with {what} {_told(name, own, others)}; fit it anew")

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
    "model": "another model, or other settings of it:",
    "classes": "other answers:",
    "asked": "another question:",
    "leaf_end": "another leaf_end:",
    "spelled": "answers spelled in other tokens:",
    "llama": "another llama.cpp:",
}


def _told(name: str, own: Any, other: Any) -> str:
    if isinstance(own, tuple):
        if len(own) != len(other):
            return f"{len(own):,} of them, where there are {len(other):,}"
        own, other = next((a, b) for a, b in zip(own, other, strict=True) if a != b)
    if name == "model":  # what both have is left out
        facts, others = own.split(), other.split()
        own, other = (" ".join(fact for fact in a if fact not in b) for a, b in ((facts, others), (others, facts)))
    return f"{_short(own)}, where this is {_short(other)}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 160 else f"{text[:160]}…")


def _facts(facts: Mapping[str, Any]) -> str:
    """Return a text of facts between which there are spaces, and in which there are none."""
    written = {name: json.dumps(value, sort_keys=True, separators=(",", ":")) for name, value in facts.items()}
    return " ".join(f"{name}={value}".replace(" ", r"\u0020") for name, value in sorted(written.items()))


def spelled_as(choices: object, leading_space: bool | None = None, *others: object, with_filtered: bool = False) -> str:
    """Return how choices are spelled in tokens, as far as that does not go by the prompt; empty for texts as usual.

    Parameters
    ----------
    with_filtered : bool
        Whether members of a `TokenTrie` that are filtered out count, too.
    """
    if isinstance(choices, TokenTrie):
        tokens = hashlib.sha256()
        for array in (choices.core if with_filtered else choices.core.kept_alone()).arrays():
            tokens.update(array.tobytes())
        return f"sha256:{tokens.hexdigest()}"
    usual = (None, "canonical", False)
    given = dict(zip(("leading_space", "tokenization", "heal"), (leading_space, *others), strict=False))
    return _facts({name: value for (name, value), own in zip(given.items(), usual, strict=False) if value != own})


_SAME_RESULT = {
    "n_ctx",
    "n_batch",
    "n_ubatch",
    "n_seq_max",
    "n_rs_seq",
    "n_outputs_max",
    "n_outputs_max_per_seq",
    "n_threads",
    "n_threads_batch",
    "defrag_thold",
    "cb_eval",
    "cb_eval_user_data",
    "abort_callback",
    "abort_callback_data",
    "offload_kqv",
    "no_perf",
    "op_offload",
    "swa_full",
    "kv_unified",
    "samplers",
    "n_samplers",
    "ctx_other",
}
"""Parameters of a context that change nothing, or no more than the rounding."""


def fingerprint(llm: Llama | None) -> str:
    """Return what evaluates: the digest of a model's files, and all else of its Llama that changes a result.

    What llama.cpp has by default is left out, and so is what changes no more than the rounding: devices, threads, and
    the sizes of batches. A chat handler or a tokenizer of the caller's is known by the tokens that it makes of a text.

    Raises
    ------
    CalibrationError
        There is no Llama, or the files that it has loaded cannot be read.
    """
    if llm is None:
        raise CalibrationError("calibration: is bound to a Llama's model, and this handle was opened on a file")
    try:
        model = digest_of_model(model_file(llm))
        adapters = [[_adapter(llm, adapter), scale] for adapter, scale in adapters_of(llm)]
    except (ArgumentError, OSError) as error:
        raise CalibrationError(f"calibration: {error}; it is bound to what evaluates") from error
    facts: dict[str, Any] = {
        name: value for name, value in _settings(llm.context_params).items() if value != _usual_settings()[name]
    }
    facts |= {"adapters": adapters} if adapters else {}
    facts |= {"kv_overrides": llm.kv_overrides} if llm.kv_overrides else {}
    facts |= {"rope": "long"} if _is_long(llm) else {}
    return " ".join(filter(None, [model, _facts({**facts, **_of_text(llm)})]))


def _adapter(llm: Llama, adapter: int) -> str:
    file = adapter_file(llm, adapter)
    if file is None:
        raise ArgumentError(
            "llm: has an adapter whose file is not known, as it was loaded before token_trie was imported"
        )
    return file.digest()


def _settings(params: Any) -> dict[str, Any]:
    return {name: value for name, value in values_of(params).items() if name not in _SAME_RESULT}


@lru_cache(1)
def _usual_settings() -> dict[str, Any]:
    return _settings(llama_cpp.llama_context_default_params())


def _is_long(llm: Llama) -> bool:
    """Tell whether a model with RoPE factors for short and for long contexts uses the long ones."""
    original = llm.metadata.get(f"{llm.metadata.get('general.architecture')}.rope.scaling.original_context_length")
    return original is not None and llm.n_ctx() > int(original)


_TEXT = "Aa 1,234.5 don't\n\t é 日本 🙂 <s></s><|im_start|>user [INST]"
_CHAT = [{"role": role, "content": f"{role} {_TEXT}"} for role in ("system", "user", "assistant", "user")]


def _of_text(llm: Llama) -> dict[str, str]:
    """Return what makes tokens of texts and of messages, beside the model's file."""
    facts = {}
    if type(llm.tokenizer_) is not llama_cpp.llama_tokenizer.LlamaTokenizer:
        facts["tokenizer"] = _digest_of(llm.tokenize(_TEXT.encode(), special=True))
    facts["chat"] = str(llm.chat_format)
    is_of_file = llm.chat_handler is None and registered_chat_handler(llm) is not None
    if has_chat_template(llm) and not is_of_file:
        facts["chat"] += f":{_digest_of(_tokens_of_chat(llm, _CHAT))}{_digest_of(_tokens_of_chat(llm, _CHAT[1:]))}"
    return facts


def _tokens_of_chat(llm: Llama, messages: Any) -> list[int] | str:
    try:
        return tokenize_prompt(llm, messages)
    except TokenTrieError as error:  # it refuses them, which tells it from others, too
        return str(error)


def _digest_of(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
