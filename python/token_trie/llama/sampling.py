"""How tokens are drawn: one value, for every request that draws some."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from token_trie.errors import ArgumentError
from token_trie.native.arguments import check_counts, check_numbers, native_seed
from token_trie.native.ffi import lib, new_struct
from token_trie.native.options import Options


@dataclass(frozen=True, kw_only=True)
class Sampling(Options):
    """How tokens are drawn, by llama.cpp's own samplers.

    Parameters
    ----------
    temperature : float, optional
        Above 0, tokens are drawn; 0 takes the best token. By default 1 where a mode draws, 0 in free text.
    top_p : float
        In (0, 1]: draws are from the most probable tokens that together have this probability.
    top_k : int
        Draws are from this many of the most probable tokens; 0: from all.
    min_p : float
        In [0, 1]: draws are from tokens that have at least this part of the best token's probability.
    seed : int, optional
        The same seed draws the same tokens; by default other tokens each time.
    """

    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        self.check_sampling(draws=False)

    def check_sampling(self, draws: bool) -> None:
        """Raise ArgumentError for what llama.cpp cannot draw by; `draws`: with a temperature of 0, neither."""
        temperature = (1.0 if draws else 0.0) if self.temperature is None else self.temperature
        check_numbers(temperature=temperature, top_p=self.top_p, min_p=self.min_p)
        check_counts(0, top_k=self.top_k)
        # In the 32 bits that llama.cpp has.
        native, top_p = (ctypes.c_float(float(given)).value for given in (temperature, self.top_p))
        if temperature < 0 or not native < float("inf") or (native == 0 and draws):
            raise ArgumentError(f"temperature: {temperature} is not above 0; for the best answer use mode='greedy'")
        if self.top_p > 1 or not 0 < top_p <= 1:
            raise ArgumentError(f"top_p: {self.top_p} is not in (0, 1]")
        if not 0 <= self.min_p <= 1:
            raise ArgumentError(f"min_p: {self.min_p} is not in [0, 1]")
        native_seed(self.seed)

    def settled(self, draws: bool) -> Sampling:
        """Return it with the temperature that holds, and without a seed."""
        return Sampling(
            temperature=self.effective_temperature(draws), top_p=self.top_p, top_k=self.top_k, min_p=self.min_p
        )

    def effective_temperature(self, draws: bool) -> float:
        """Return the temperature that holds, where a mode draws or where it does not."""
        if self.temperature is None:
            return 1.0 if draws else 0.0
        return float(self.temperature)


def native_sampling(sampling: Sampling, draws: bool, *, continues: bool = False, **defaults: Any) -> Any:
    """Return a struct token_trie_sampling.

    Parameters
    ----------
    draws
        As of `Sampling.effective_temperature`.
    continues
        Without a seed, whether the random draws of the stream go on.
    **defaults
        Members in place of those that are off.
    """
    seed = lib.TOKEN_TRIE_SEED_RANDOM if sampling.seed is None else native_seed(sampling.seed)
    if sampling.seed is None and continues:
        seed = lib.TOKEN_TRIE_SEED_KEEP
    given = {"top_k": int(sampling.top_k), "min_p": float(sampling.min_p)}
    return new_struct(
        "token_trie_sampling",
        seed=seed,
        temperature=sampling.effective_temperature(draws),
        top_p=float(sampling.top_p),
        **{**defaults, **{name: value for name, value in given.items() if value}},
    )


if TYPE_CHECKING:  # by scripts/keywords

    class SamplingKeywords(TypedDict, total=False):
        """Those of `Sampling`."""

        temperature: float | None
        top_p: float
        top_k: int
        min_p: float
        seed: int | None
