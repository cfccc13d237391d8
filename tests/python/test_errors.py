from __future__ import annotations

import re
from pathlib import Path

import token_trie
from token_trie import errors

HEADER = (Path(token_trie.__file__).parent / "include" / "token_trie.h").read_text()


def test_every_status_of_the_header_has_its_exception() -> None:
    codes = {int(code) for code in re.findall(r"TOKEN_TRIE_ERROR_\w+ = (-\d+)", HEADER)}
    assert codes
    assert set(errors.BY_STATUS) == codes
    assert len(set(errors.BY_STATUS.values())) == len(codes)


def test_every_exception_is_a_value_error_and_is_in_the_drawing() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.TokenTrieError]
    for kind in kinds:
        assert issubclass(kind, errors.TokenTrieError)
        assert issubclass(kind, ValueError)
        assert f"─ {kind.__name__}" in str(errors.__doc__)
        assert getattr(token_trie, kind.__name__, kind) is kind


def test_an_unknown_status_is_a_defect() -> None:
    assert type(errors.from_status(-99, "?")) is errors.InternalError
