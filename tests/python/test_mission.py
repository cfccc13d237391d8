"""The words of the request that this project answers: names, signatures, options and keys."""

from __future__ import annotations

import ctypes
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from token_trie import StreamHandle, TokenTrie
from token_trie.native.core import BUILDS, vocab_of
from token_trie.native.ffi import check, ffi, last_error, lib, new_struct

ROOT = Path(__file__).parents[2]
HEADER = " ".join((BUILDS.parent / "include" / "token_trie.h").read_text().split())
PAYLOAD = json.dumps(
    {
        "modelId": "any",
        "descriptors": [
            {
                "path": "step",
                "leaves": [{"name": "THINK", "tokens": [100, 101]}, {"name": "EXECUTE", "tokens": [200]}],
            }
        ],
    }
)

in_the_source_tree = pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="needs the source tree")


# The folders


@in_the_source_tree
@pytest.mark.parametrize("folder", ["include", "csrc", "python", "tests", "bench", "examples", "docs"])
def test_the_repository_has_the_folder(folder: str) -> None:
    assert (ROOT / folder).is_dir()


# The sampler


def pointer_of(sampler: Any) -> Any:
    return ctypes.cast(int(ffi.cast("uintptr_t", sampler)), llama_cpp.llama_sampler_p_ctypes)


def make(payload: str, mode: int, vocab: Any = ffi.NULL) -> Any:
    sampler = lib.llama_sampler_init_token_trie(vocab, payload.encode(), mode)
    assert sampler != ffi.NULL, last_error()
    return pointer_of(sampler)


def apply(sampler: Any, logits: dict[int, float]) -> list[tuple[int, float]]:
    """Return the candidates that are left, and behind them those that are not."""
    data = (llama_cpp.llama_token_data * len(logits))(*((token, logit, 0.0) for token, logit in logits.items()))
    array = llama_cpp.llama_token_data_array(data, len(logits), -1, False)
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    assert all(data[i].logit == -math.inf for i in range(array.size, len(logits)) if data[i].id == 999)
    return [(data[i].id, data[i].logit) for i in range(array.size)]


def test_the_header_declares_the_sampler_with_vocab_json_and_mode() -> None:
    signature = (
        "llama_sampler_init_token_trie(const struct llama_vocab * vocab, const char * trie_descriptor_json, int mode)"
    )
    assert f"TOKEN_TRIE_API struct llama_sampler * {signature};" in HEADER


def test_a_sampled_sampler_leaves_all_allowed_candidates_with_their_logits() -> None:
    sampler = make(PAYLOAD, lib.TOKEN_TRIE_SAMPLED)
    assert apply(sampler, {100: 5.0, 200: 4.0, 999: 6.0}) == [(100, 5.0), (200, 4.0)]
    llama_cpp.llama_sampler_free(sampler)


def test_a_greedy_sampler_leaves_the_best_allowed_candidate() -> None:
    sampler = make(PAYLOAD, lib.TOKEN_TRIE_GREEDY)
    assert apply(sampler, {100: 5.0, 200: 4.0, 999: 6.0}) == [(100, 5.0)]
    llama_cpp.llama_sampler_free(sampler)


def test_after_a_leaf_the_sampler_changes_nothing() -> None:
    sampler = make(PAYLOAD, lib.TOKEN_TRIE_GREEDY)
    llama_cpp.llama_sampler_accept(sampler, 100)
    assert apply(sampler, {100: 5.0, 101: 4.0, 998: 6.0}) == [(101, 4.0)]
    llama_cpp.llama_sampler_accept(sampler, 101)
    assert apply(sampler, {100: 5.0, 101: 4.0, 998: 6.0}) == [(100, 5.0), (101, 4.0), (998, 6.0)]
    llama_cpp.llama_sampler_free(sampler)


@pytest.mark.parametrize(
    ("payload", "mode", "message"),
    [
        ('{"descriptors": []}', 0, "no leaf"),
        ('{"descriptors": [', 0, "broken JSON"),
        (PAYLOAD, 7, "mode: 7 is not in"),
    ],
)
def test_a_payload_or_mode_that_is_wrong_gives_null_and_a_message(payload: str, mode: int, message: str) -> None:
    assert lib.llama_sampler_init_token_trie(ffi.NULL, payload.encode(), mode) == ffi.NULL
    assert message in last_error()


# The place in the chain: before the grammar and the selection


def test_the_header_says_where_the_sampler_stands() -> None:
    text = HEADER.replace("// ", "").replace(" * ", " ")
    assert "after logit bias, penalties and DRY;" in text
    assert "before truncation, grammar and selection" in text


@pytest.mark.parametrize("last", ["grammar", "dist"])
def test_what_comes_after_the_sampler_chooses_among_what_it_left(tiny: Any, last: str) -> None:
    pieces = {vocab_of(tiny).detokenize([token]): token for token in range(tiny.n_vocab())}
    a, b, c = pieces[b"a"], pieces[b"b"], pieces[b"c"]
    trie = TokenTrie.from_sequences({"a": [a], "b": [b]})
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    llama_cpp.llama_sampler_chain_add(chain, make(trie.payload(), lib.TOKEN_TRIE_SAMPLED))
    if last == "grammar":
        vocab = llama_cpp.llama_model_get_vocab(tiny.model)
        grammar = llama_cpp.llama_sampler_init_grammar(vocab, b'root ::= "b" | "c"', b"root")
        llama_cpp.llama_sampler_chain_add(chain, grammar)
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
        expected = {b}
    else:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(1))
        expected = {a, b}
    tiny.reset()
    tiny.eval(tiny.tokenize(b"x", add_bos=False))
    token = llama_cpp.llama_sampler_sample(chain, tiny.ctx, -1)
    llama_cpp.llama_sampler_free(chain)
    assert token in expected
    assert token != c


# The cache


@pytest.fixture
def empty_cache() -> Iterator[Any]:
    lib.token_trie_cache_clear()
    stats = new_struct("token_trie_cache_stats")

    def counts() -> Any:
        check(lib.token_trie_cache_get_stats(stats))
        return stats.hits, stats.misses, stats.evictions, stats.entries

    yield counts
    lib.token_trie_cache_clear()


def numbered(i: int) -> str:
    return json.dumps({"descriptors": [{"leaves": [{"name": f"leaf {i}", "tokens": [i]}]}]})


def read(payload: str) -> None:
    llama_cpp.llama_sampler_free(make(payload, lib.TOKEN_TRIE_GREEDY))


def test_the_cache_holds_the_128_payloads_that_were_used_last(empty_cache: Any) -> None:
    _, misses, evictions, _ = empty_cache()
    for i in range(128):
        read(numbered(i))
    assert empty_cache()[1:] == (misses + 128, evictions, 128)
    read(numbered(128))
    assert empty_cache()[1:] == (misses + 129, evictions + 1, 128)
    hits = empty_cache()[0]
    read(numbered(128)), read(numbered(1))
    assert empty_cache()[0] == hits + 2
    read(numbered(0))  # the first went
    assert empty_cache()[:3] == (hits + 2, misses + 130, evictions + 2)


def test_the_cache_is_keyed_by_the_sha_256_of_the_payloads_bytes(empty_cache: Any) -> None:
    assert "Its key is the * SHA-256 of the payload" in HEADER
    hits, misses, *_ = empty_cache()
    read(PAYLOAD), read(PAYLOAD), read(PAYLOAD + " ")  # another byte, the same set
    assert empty_cache()[:2] == (hits + 1, misses + 2)


# The handle


@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_a_trie_is_set_on_a_handle_and_cleared_again(tiny: Any, mode: Any) -> None:
    with StreamHandle(tiny, n_ctx=64, seed=1) as stream:
        stream.prefill("Do:")
        stream.set_token_trie(TokenTrie.from_choices(tiny, ["read", "send"]), mode)
        list(stream.generate())
        assert stream.state.name in ("read", "send")
        stream.clear_token_trie()
        assert sum(1 for _ in stream.generate(3)) == 3


@pytest.mark.parametrize("name", ["set_token_trie", "clear_token_trie", "set_grammar", "import_prefix"])
def test_the_c_abi_has_the_handles_function(name: str) -> None:
    assert f"token_trie_stream_{name}(struct token_trie_stream * stream" in HEADER


# The benchmark


@in_the_source_tree
@pytest.mark.parametrize("mode", ["strict-guided", "strict-trie-ffi"])
def test_the_benchmark_has_the_modes_options_and_keys(mode: str, model_paths: dict[str, Path], tmp_path: Path) -> None:
    cities = [{"name": name, "tokens": tokens} for name, tokens in (("a", [198, 198]), ("b", [198, 216, 28]))]
    descriptor, output = tmp_path / "cities.json", tmp_path / "out.json"
    descriptor.write_text(json.dumps({"descriptors": [{"path": "city", "leaves": cities}]}))
    command = [sys.executable, "-m", "bench", "--mode", mode, "--model", str(model_paths["smollm2"])]
    command += ["--prompt", "The capital of France is", "--token-tree-descriptor", str(descriptor)]
    subprocess.run([*command, "--output", str(output)], cwd=ROOT, check=True)
    result = json.loads(output.read_text())
    assert result["mode"] == mode
    assert result["model"] == model_paths["smollm2"].stem
    assert result["tokens_per_second"] > 0
    assert result["forward_passes_total"] >= 0
    if mode == "strict-guided":
        assert result["tokens_per_second_vs_grammar"] == 1
        assert result["skip_ratio_mean"] is result["skip_ratio_std"] is None
    else:
        assert result["tokens_per_second_vs_grammar"] > 0
        assert 0.9 < result["skip_ratio_mean"] < 1
        assert 0 <= result["skip_ratio_std"] < 0.1
        assert result["token_accuracy"] == 1
        assert result["forward_passes_saved"] > 0
    assert {"token_accuracy", "forward_passes_saved"} <= set(result)
