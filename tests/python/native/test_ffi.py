from __future__ import annotations

import re

import pytest
from token_trie import ArgumentError
from token_trie.native.core import BUILDS
from token_trie.native.ffi import check, check_pointer, ffi, last_error, lib, new_struct

HEADER = BUILDS.parent / "include" / "token_trie.h"


def test_every_function_of_the_header_can_be_called() -> None:
    declared = re.findall(r"^TOKEN_TRIE_API[\s\w*]*?(\w+)\(", HEADER.read_text(), re.MULTILINE)
    assert len(declared) > 15
    for name in declared:
        assert callable(getattr(lib, name)), name


def test_the_header_is_read_as_shipped() -> None:
    enums = re.findall(r"\b(TOKEN_TRIE_\w+) = (-?\d+)", HEADER.read_text())
    assert len(enums) > 15
    assert {name: getattr(lib, name) for name, _ in enums} == {name: int(value) for name, value in enums}


def test_structs_begin_with_their_size() -> None:
    for name in re.findall(r"^struct (\w+) \{", HEADER.read_text(), re.MULTILINE):
        struct = new_struct(name)
        assert struct.size == ffi.sizeof(f"struct {name}") >= ffi.sizeof("size_t")
        assert ffi.offsetof(f"struct {name}", "size") == 0


def test_a_failure_has_a_message_and_a_status() -> None:
    status = lib.token_trie_stream_prefill(ffi.NULL, ffi.NULL, 0)
    assert status == lib.TOKEN_TRIE_ERROR_ARGUMENT == lib.token_trie_last_status()
    assert last_error() == "stream: null"
    with pytest.raises(ArgumentError, match="stream: null"):
        check(status)
    with pytest.raises(ArgumentError, match="gguf_path: null"):
        check_pointer(lib.token_trie_stream_open_file(ffi.NULL, new_struct("token_trie_stream_params")))
