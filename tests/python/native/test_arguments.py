from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from token_trie import ArgumentError
from token_trie.llama.query import Sampling
from token_trie.native.options import check_counts, check_integers, check_numbers, native_seed

LONG = 10**5000  # which Python does not write


@pytest.mark.parametrize("integer", [3, np.int8(3), np.uint64(3)])
def test_integers_are_pythons_and_numpys(integer: Any) -> None:
    check_counts(n=integer)
    check_integers(n=integer)
    native_seed(integer)


@pytest.mark.parametrize(
    "other",
    [True, np.bool_(True), 3.0, "3", None, LONG, -LONG, 2**32, np.array(3), np.array([3, 4])],
    ids=lambda other: type(other).__name__,
)
def test_what_is_no_integer_or_too_large_is_refused_by_name(other: Any) -> None:
    for check in (check_counts, check_integers):
        with pytest.raises(ArgumentError, match=r"^n(:| must be) "):
            check(n=other)
    if other is not None:  # which is a new seed each time
        with pytest.raises(ArgumentError, match=r"^seed(:| must be) "):
            native_seed(other)


@pytest.mark.parametrize(
    "number", [LONG, -LONG, Fraction(LONG), "1", None, 1j], ids=lambda number: type(number).__name__
)
def test_what_no_float_holds_is_refused_by_name(number: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^x(:| must be) "):
        check_numbers(x=number)
    with pytest.raises(ArgumentError, match=r"^top_p(:| must be) "):
        Sampling(top_p=number)


@pytest.mark.parametrize("temperature", [1e39, 1e300, -1e300, float("inf"), float("nan"), 1e-50])
def test_a_temperature_is_one_in_single_precision(temperature: float) -> None:
    with pytest.raises(ArgumentError, match=r"^temperature: .* is not above 0"):
        Sampling(temperature=temperature).check_sampling(draws=True)
