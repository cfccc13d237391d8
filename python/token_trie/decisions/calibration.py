"""Calibration methods: log-scores to probabilities, bound to the model and the choices they were made for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from token_trie.arrays import Floats, States
from token_trie.errors import ArgumentError, CalibrationError, TokenTrieError
from token_trie.native.core import Llama, llama_cpp
from token_trie.native.files import File, digest_of_model, model_file
from token_trie.native.lifetime import attachment
from token_trie.native.llama_facts import registered_chat_handler, values_of
from token_trie.native.options import check_numbers
from token_trie.sets.prompt import Prompt, has_chat_template, tokenize_prompt
from token_trie.sets.trie import TokenTrie

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Binding:
    """Identifies the model, question, classes and end rule of scores. A calibration applies only to an equal binding.

    Parameters
    ----------
    model : str
        The digest of the model's files and of the Llama's settings that change a result; see `fingerprint`.
    llama : str
        The version of llama.cpp.
    wording : str
        The question: a template of prompts, or a question in its form; empty if it was not given.
    classes : tuple of str
        The answers as the model sees them, in order.
    leaf_end : str
        The end rule of the scores.
    spelled : str
        How the answers are tokenized, if not in the default way; see `spelled_as`.
    columns : str
        The columns of a table from which states are made, or their template; empty if they were not given.
    """

    model: str
    llama: str
    wording: str
    classes: tuple[str, ...]
    leaf_end: str
    spelled: str = ""
    columns: str = ""

    def require(self, other: Binding) -> None:
        """Raise CalibrationError, which names the difference, unless both are equal.

        Empty `wording` and `columns` fit any.
        """
        for name, what in _NAMES.items():
            own, others = getattr(self, name), getattr(other, name)
            if own != others and not (name in ("wording", "columns") and not (own and others)):
                raise CalibrationError(
                    f"calibration: was fitted with {what} {_told(own, others)}; use the same, or fit it anew"
                )


_NAMES = {
    "model": "another model, or other settings of it:",
    "classes": "other answers:",
    "wording": "another question:",
    "columns": "other columns of the table:",
    "leaf_end": "another leaf_end:",
    "spelled": "answers spelled in other tokens:",
    "llama": "another llama.cpp:",
}


def _told(own: str | tuple[str, ...], other: str | tuple[str, ...]) -> str:
    """Tell the difference: the words, or the answers, that only one side has."""
    if isinstance(own, tuple) and len(own) != len(other):
        return f"{len(own):,} of them, where there are {len(other):,}"
    parts, others = (given.split() if isinstance(given, str) else given for given in (own, other))
    pairs = ((parts, others), (others, parts))
    only, instead = (" ".join(part for part in mine if part not in theirs) for mine, theirs in pairs)
    if not only and not instead:
        return "in another order, or more than once"
    return f"{_quoted(only)}, where this is {_quoted(instead)}"


def _quoted(text: str) -> str:
    """Quote a text, or the beginning of a long one."""
    return repr(text if len(text) <= 160 else f"{text[:160]}…")


def _facts(facts: Mapping[str, Any]) -> str:
    """Return facts as one text, separated by spaces; spaces inside a fact are escaped."""
    written = {name: json.dumps(value, sort_keys=True, separators=(",", ":")) for name, value in facts.items()}
    return " ".join(f"{name}={value}".replace(" ", r"\u0020") for name, value in sorted(written.items()))


def spelled_as(choices: object, leading_space: bool | None = None, *, with_filtered: bool = False) -> str:
    """Return how choices are tokenized, as far as the prompt does not decide it; empty for texts in the default way.

    `with_filtered`: whether members of a `TokenTrie` that are filtered out count, too.
    """
    if isinstance(choices, TokenTrie):
        tokens = hashlib.sha256()
        for array in (choices.core if with_filtered else choices.core.kept_alone()).arrays():
            tokens.update(array.tobytes())
        return f"sha256:{tokens.hexdigest()}"
    return _facts({} if leading_space is None else {"leading_space": leading_space})


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
"""Parameters of a context that do not change results, except by rounding."""


def fingerprint(llm: Llama | None) -> str:
    """Return the identity of a model: the digest of its files, and all settings of its Llama that change a result.

    llama.cpp's defaults are left out, and so are settings that only change the rounding: devices, threads, and the
    sizes of batches. A chat handler or tokenizer of the caller is identified by the tokens that it makes of a text.
    CalibrationError if there is no Llama, or its files cannot be read.
    """
    if llm is None:
        raise CalibrationError("calibration: is bound to a Llama's model, and this handle was opened on a file")
    try:
        model = digest_of_model(model_file(llm))
        adapters = [[File.at(llm.lora_path).digest(), scale] for _, scale in attachment(llm).adapters]
    except (ArgumentError, OSError) as error:
        raise CalibrationError(f"calibration: {error}; it is bound to what evaluates") from error
    facts: dict[str, Any] = {
        name: value for name, value in _settings(llm.context_params).items() if value != _usual_settings()[name]
    }
    facts |= {"adapters": adapters} if adapters else {}
    facts |= {"kv_overrides": llm.kv_overrides} if llm.kv_overrides else {}
    facts |= {"rope": "long"} if _is_long(llm) else {}
    return " ".join(filter(None, [model, _facts({**facts, **_of_text(llm)})]))


def _settings(params: Any) -> dict[str, Any]:
    return {name: value for name, value in values_of(params).items() if name not in _SAME_RESULT}


@lru_cache(1)
def _usual_settings() -> dict[str, Any]:
    return _settings(llama_cpp.llama_context_default_params())


def _is_long(llm: Llama) -> bool:
    """Whether a model with RoPE factors for short and for long contexts uses the long ones."""
    original = llm.metadata.get(f"{llm.metadata.get('general.architecture')}.rope.scaling.original_context_length")
    return original is not None and llm.n_ctx() > int(original)


_TEXT = "Aa 1,234.5 don't\n\t é 日本 🙂 <s></s><|im_start|>user [INST]"
_CHAT = [{"role": role, "content": f"{role} {_TEXT}"} for role in ("system", "user", "assistant", "user")]


def _of_text(llm: Llama) -> dict[str, str]:
    """Return facts, besides the model's file, that change how texts and messages are tokenized."""
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
    except TokenTrieError as error:  # a refusal identifies the handler too
        return str(error)


def _digest_of(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


MIN_ROWS = 8
"""Smallest number of different rows whose mean is used."""
BATCH_ROWS = 512
"""Number of rows that are read before the first of them is decided, by the mean over all rows so far."""


@dataclass(frozen=True, eq=False)
class Mean:
    """The mean of rows of log-scores, added up row by row."""

    add: np.ufunc = np.add
    """np.add: the mean of the log-scores. np.logaddexp: the logarithm of the mean of the probabilities."""
    n: int = 0
    """Number of rows so far."""
    total: Floats | None = None
    """Their sum, by `add`."""

    def with_rows(self, rows: Floats) -> Self:
        """Return the mean with more rows, shape (n_rows, n_classes)."""
        total = self.add.reduce(rows, axis=0)
        return replace(self, n=self.n + len(rows), total=total if self.total is None else self.add(self.total, total))

    @property
    def value(self) -> Floats:
        """The mean of one or more rows."""
        assert self.total is not None
        value: Floats = self.total / self.n if self.add is np.add else self.total - np.log(self.n)
        return value

    @property
    def prior(self) -> Floats | None:
        """The mean; None for fewer than `MIN_ROWS` rows."""
        return None if self.n < MIN_ROWS else self.value


Base: TypeAlias = Literal["raw", "contextual"]


class Calibrator:
    """Turns a model's scores of classes, and its hidden state after a prompt, into log-weights.

    A class of this kind says what it needs; whoever answers with it gets that for it.
    """

    kind: str
    """Name of the method."""
    binding: Binding | None = None
    """The model, question and classes that it was fitted on; None if it was not fitted."""
    weights: Floats | None = np.zeros(())
    """Added to the scores of the classes, which fixes their order; None if not known in advance."""
    needs_state: bool = False
    """Whether it takes the hidden state of the prompt's last token."""
    needs_prior: bool = False
    """Whether the scores after a prompt without content are subtracted from those that it takes."""

    def log_weights(self, scores: Floats, states: States | None) -> Floats:
        """Return log-weights, shape (n_rows, n_classes); their softmax gives the probabilities.

        `scores` has this shape, too, less the prior; `states`, shape (n_rows, n_embd), are the hidden states of the
        prompts' last tokens, or None if they are not needed.
        """
        assert self.weights is not None  # otherwise a class overrides this
        weights: Floats = scores + self.weights
        return weights


@dataclass(frozen=True)
class Contextual(Calibrator):
    """Subtracts from each score the score that the answer gets after a prompt without content.

    It needs no labels (contextual calibration, Zhao et al., "Calibrate Before Use", 2021). It helps small models that
    favour some answers whatever the prompt says. For models that do not, it can make answers worse.

    Parameters
    ----------
    prompt : str, sequence of int, or sequence of chat messages
        The prompt without its content, such as with an empty request.
    """

    prompt: Prompt | None

    kind, needs_prior = "contextual", True


class BatchMean(Calibrator):
    """Divides the probabilities of the answers by their mean over the rows that are decided together.

    It needs neither labels nor further passes (batch calibration, Zhou et al., "Batch Calibration", 2023). Equal rows
    count once, and answers are raw while fewer than `MIN_ROWS` different ones were read. It assumes that the answers
    are about equally frequent; if they are not, it makes answers worse.
    """

    kind = "batch"


@dataclass(frozen=True, eq=False)
class Weights(Calibrator):
    """Ranks members by ``logprob + scale * value``, with a value of your own (popularity, price, age).

    Searches stay exact, because the largest value below a node bounds the rank of the members below it. `probabilities`
    are computed from these ranks; `logprob` stays the model's own.

    Parameters
    ----------
    values : array of float, shape (n,)
        One finite value for each choice, in their order, and the same value for equal choices; for a `TokenTrie`, one
        for each leaf, also for leaves that are filtered out. Do not write to the array afterwards.
    scale : float, optional
        How many nats a value of 1 adds.
    """

    values: npt.ArrayLike
    scale: float = 1.0
    weights: Floats = field(init=False, repr=False)
    """The values, in nats."""

    kind = "weighted"

    def __post_init__(self) -> None:
        check_numbers(scale=self.scale)
        if not np.isfinite(self.scale):
            raise ArgumentError(f"scale: {self.scale} is not finite")
        try:
            values = np.asarray(self.values, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"values: {error}") from error
        if values.ndim != 1:
            raise ArgumentError(f"values must have one dimension, not shape {values.shape}")
        with np.errstate(over="ignore", invalid="ignore"):
            of_each = values * self.scale
        wrong = np.flatnonzero(~np.isfinite(of_each))
        if len(wrong):
            raise ArgumentError(f"values[{wrong[0]}]: {values[wrong[0]]} · {self.scale} is not finite")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "weights", of_each)


_NAMED: Mapping[str, Calibrator] = {"contextual": Contextual(None), "batch": BatchMean()}

AloneName: TypeAlias = Literal["contextual"]
"""Names of those that need no other rows."""
CalibrationName: TypeAlias = Literal[AloneName, "batch"]

CalibrationLike: TypeAlias = Calibrator | Literal["batch"]
"""Types of the option `calibration`."""


def calibrator_of(calibration: object) -> Calibrator | None:
    """Return the calibrator that an option means, by its name or itself; None if it is none."""
    if isinstance(calibration, str):
        return _NAMED.get(calibration)
    return calibration if isinstance(calibration, Calibrator) else None


def check_calibration(calibration: object) -> None:
    """Raise ArgumentError unless it is a calibration for choices, or None."""
    found = calibrator_of(calibration)
    if calibration is None or (found is not None and not (isinstance(calibration, str) and found.needs_prior)):
        return
    given = repr(calibration) if isinstance(calibration, str) else type(calibration).__name__
    raise ArgumentError(f"calibration must be a Calibration, Contextual, Weights or 'batch', not {given}")


def refuse_batch(calibration: object) -> None:
    """Raise ArgumentError for the calibration that needs many rows, in a call with one row."""
    if calibration == "batch":
        raise ArgumentError("calibration: 'batch' is taken over many rows, as by choose_many and decide_many")
