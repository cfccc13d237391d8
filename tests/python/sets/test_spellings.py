"""tokenization="any": every token sequence that spells a member; separators are spelled as within a text."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from llguidance.llamacpp import lltokenizer_from_vocab
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from token_trie import ArgumentError, StreamHandle, TokenTrie, VocabularyError, choose, constrain
from token_trie.errors import PayloadError
from token_trie.native.core import vocab_of
from token_trie.sets.prompt import tokenize_prompt
from token_trie.sets.spelling import inner_tokens
from token_trie.show.trie import draw
from tokenized_choices import spell_choices

CHOICES = ["READ", "READ_FILE", "SEND_EMAIL", "SET_ALARM", "naïve", "日本語", "😀 ok", " two  spaces"]


@functools.cache
def pieces(llm: Any) -> list[bytes]:
    """Bytes of each token; none for what may not stand in a text."""
    return [
        b"" if llama_cpp.llama_vocab_is_control(llm._model.vocab, t) else vocab_of(llm).detokenize([t])
        for t in range(llm.n_vocab())
    ]


def text_of(llm: Any, tokens: Any) -> str:
    return b"".join(pieces(llm)[t] for t in tokens).decode()


def any_trie(llm: Any, texts: list[str]) -> TokenTrie:
    return TokenTrie.from_choices(llm, texts, leading_space=False, tokenization="any")


def test_every_step_allows_the_tokens_that_go_on_with_a_member_and_no_others(llm: Any) -> None:
    cursor = constrain(llm, any_trie(llm, CHOICES)).new_cursor()
    members = [choice.encode() for choice in CHOICES]
    tokens_of: dict[bytes, list[int]] = {}
    for token, piece in enumerate(pieces(llm)):
        tokens_of.setdefault(piece, []).append(token)
    ends = oracle.end_of_generation(llm)
    rng = np.random.default_rng(1)
    for _ in range(50):
        cursor.reset()
        walked = b""
        while True:
            left = [m[len(walked) :] for m in members if m.startswith(walked)]
            going_on = {t for m in left for n in range(1, len(m) + 1) for t in tokens_of.get(m[:n], [])}
            allowed = going_on | (ends if walked in members else set())
            if not going_on:
                break
            assert set(cursor.allowed().tolist()) == allowed
            token = int(rng.choice(sorted(going_on)))
            assert cursor.accept(token)
            walked += pieces(llm)[token]
        assert cursor.leaf is not None
        assert members[cursor.leaf] == walked


_texts = st.text(st.sampled_from("ab \n\"\\é日😀'<_0"), min_size=1, max_size=6)


@settings(max_examples=40)
@given(texts=st.lists(_texts, min_size=1, max_size=6, unique=True), data=st.data())
def test_what_is_allowed_is_what_llguidance_allows(smollm2: Any, texts: list[str], data: st.DataObject) -> None:
    llm = smollm2
    members = " | ".join(json.dumps(text) for text in texts)
    matcher = LLMatcher(lltokenizer(llm), f'%llguidance {{"no_forcing": true}}\nstart: T\nT: {members}')
    mask = allocate_token_bitmask(1, llm.n_vocab())
    cursor = constrain(llm, any_trie(llm, texts)).new_cursor()
    ends = sorted(oracle.end_of_generation(llm))
    while True:
        fill_next_token_bitmask(matcher, mask)
        theirs = np.unpackbits(mask.view(np.uint8), bitorder="little")[: llm.n_vocab()].astype(bool)
        allowed = cursor.allowed()
        ours = np.full(llm.n_vocab(), allowed is None)
        if allowed is not None:
            ours[allowed] = True
        assert ours[ends].any() == theirs[ends].any()
        ours[ends] = theirs[ends] = False
        assert np.flatnonzero(ours).tolist() == np.flatnonzero(theirs).tolist()
        if not ours.any():
            break
        token = data.draw(st.sampled_from(np.flatnonzero(ours).tolist()))
        assert cursor.accept(token)
        assert matcher.consume_token(token)


@functools.cache
def lltokenizer(llm: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it asks llama_cpp by names of old
        return lltokenizer_from_vocab(llm._model.vocab)


@pytest.mark.parametrize("country", ["France", "Germany", "Italy", "Spain", "Japan"])
def test_a_greedy_answer_has_the_tokens_of_a_grammar(smollm2: Any, country: str) -> None:
    llm = smollm2
    cities = ["Paris", "Berlin", "Rome", "Madrid", "Tokyo", "Par", "Naïveté"]
    prompt = tokenize_prompt(llm, f"The capital of {country} is")
    sample, seen = llm.sample, []
    llm.sample = lambda *args, **kwargs: seen.append(sample(*args, **kwargs)) or seen[-1]
    try:
        grammar = llama_cpp.LlamaGrammar.from_string(
            "root ::= " + " | ".join(f'" {city}"' for city in cities), verbose=False
        )
        llm.create_completion(prompt, temperature=0, max_tokens=30, grammar=grammar)
    finally:
        del llm.sample
    expected = [t for t in seen if t not in oracle.end_of_generation(llm)]
    with StreamHandle(llm, jump_forward=False) as stream:
        # In the portions of llama-cpp-python, as logits move with the size of a batch.
        stream.prefill(prompt[:-1])
        stream.prefill(prompt)
        stream.set_token_trie(TokenTrie.from_choices(llm, cities, prompt=prompt, tokenization="any"))
        assert [step.token for step in stream.generate()] == expected


def test_texts_follow_the_prompt_as_canonical_choices_do(llm: Any) -> None:
    for prompt in ("Answer:", "Answer: ", "Answer:\n", 'He said "', [{"role": "user", "content": "Hi"}], None):
        spelled = spell_choices(llm, prompt, ["yes", " no", "はい"])
        canonical = TokenTrie.from_choices(llm, ["yes", " no", "はい"], prompt=None if prompt == "Answer: " else prompt)
        trie = TokenTrie.from_choices(llm, ["yes", " no", "はい"], prompt=prompt, tokenization="any")
        assert [text_of(llm, leaf.tokens) for leaf in trie] == spelled
        assert [text_of(llm, leaf.tokens) for leaf in canonical] == spelled
        assert trie.names == ["yes", " no", "はい"]


def test_a_decision_comes_back_as_it_was_given(llm: Any) -> None:
    for prompt in ("Pick:", "Pick: ", "Pick:\n", [{"role": "user", "content": "Pick."}]):
        decision = choose(llm, prompt, [*CHOICES, "READ"], tokenization="any")
        assert decision.value in CHOICES
        assert decision.index == CHOICES.index(decision.value)
        assert text_of(llm, decision.tokens) == spell_choices(llm, prompt, CHOICES)[decision.index]
        assert decision.stats.n_prompt == len(tokenize_prompt(llm, prompt))


def test_it_works_on_a_vocabulary_that_puts_a_space_before_texts(tiny: Any) -> None:
    decision = choose(tiny, "Answer", ["yes", "no"], tokenization="any")
    assert text_of(tiny, decision.tokens) == " " + decision.value


def test_the_blocks_of_constrain_take_it(llm: Any) -> None:
    trie = TokenTrie.from_choices(llm, ["READ", "READ_FILE", "SEND_EMAIL"], prompt="Action:", tokenization="any")
    with constrain(llm, trie) as constraint:
        answer = llm.create_completion("Action:", max_tokens=trie.max_tokens + 1, temperature=0)
    assert constraint.complete
    assert constraint.names == [answer["choices"][0]["text"].strip()]


def test_a_payload_of_texts_fits_every_model(smollm2: Any, gemma: Any) -> None:
    trie = TokenTrie.from_choices(smollm2, ["b", "a", "b"], prompt="Answer:", tokenization="any")
    payload = trie.payload(model_id="m", path="p")
    assert json.loads(payload) == {
        "modelId": "m",
        "descriptors": [
            {
                "path": "p",
                "tokenization": "any",
                "leaves": [{"name": "b", "text": " b"}, {"name": "a", "text": " a"}],
            }
        ],
    }
    for llm in (smollm2, gemma):
        again = TokenTrie.from_payload(payload, "p", llm=llm)
        assert again.tokenization == "any"
        assert again.names == ["b", "a"]
        assert [text_of(llm, leaf.tokens) for leaf in again] == [" b", " a"]
        assert again.vocab == vocab_of(llm).fingerprint()
    with pytest.raises(VocabularyError, match="vocab: the set was made for another vocabulary"):
        constrain(gemma, trie)


def test_a_stream_takes_texts(smollm2: Any, model_paths: dict[str, Path]) -> None:
    leaves = [{"name": "F", "text": " Paris"}, {"name": "D", "text": " Berlin"}]
    payload = {"descriptors": [{"tokenization": "any", "leaves": leaves}]}
    for llm in (smollm2, model_paths["smollm2"]):
        with StreamHandle(llm, n_ctx=128, n_threads=1) as stream:
            stream.prefill("The capital of France is")
            stream.set_token_trie(payload)
            assert "".join(step.text for step in stream.generate()) == " Paris"
            assert stream.state.leaf == 0


def test_leaves_can_be_looked_for_by_any_spelling(smollm2: Any) -> None:
    trie = any_trie(smollm2, ["ab", "abc"])
    a, b, ab = (pieces(smollm2).index(piece) for piece in (b"a", b"b", b"ab"))
    assert [a, b] in trie
    assert [ab] in trie
    assert [a] not in trie
    assert "abc" in trie
    assert trie.children([a, b]).tolist() == trie.children([ab]).tolist()
    assert trie.max_tokens == 3
    assert [text_of(smollm2, leaf.tokens) for leaf in trie] == ["ab", "abc"]
    assert len(trie[0].tokens) == 1


def test_a_drawing_shows_each_spelling(smollm2: Any) -> None:
    labels = [str(branch.label) for branch in draw(any_trie(smollm2, ["ab"])).children]
    assert sorted(label.count("[cyan]") for label in labels) == [1, 2]
    assert all("ab" in label for label in labels)


def test_it_is_copied_but_not_pickled_without_its_vocabulary(smollm2: Any) -> None:
    trie = any_trie(smollm2, ["a"])
    assert copy.copy(trie).names == copy.deepcopy(trie).names == ["a"]
    with pytest.raises(ArgumentError, match=r"take payload\(\) along"):
        pickle.dumps(trie)


def test_what_does_not_fit_is_refused_naming_it(smollm2: Any) -> None:
    llm = smollm2
    trie = any_trie(llm, ["a"])
    with pytest.raises(ArgumentError, match="tokenization: 'some' is none of 'canonical', 'any'"):
        choose(llm, "x", ["a"], tokenization="some")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="tokenization: 'some' is none of"):
        TokenTrie.from_choices(llm, ["a"], tokenization="some")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="tokenization: goes with choices given as texts"):
        choose(llm, "x", trie, tokenization="any")
    for mode in ("exact", "aligned", "beam"):
        with pytest.raises(ArgumentError, match="scored in one spelling"):
            choose(llm, "x", ["a", "b"], mode=mode, tokenization="any")  # type: ignore[arg-type]
    with pytest.raises(VocabularyError, match='tokenization: "any" needs the vocabulary'):
        TokenTrie.from_payload(trie.payload())
    with pytest.raises(PayloadError, match=r'descriptors\[0\].leaves\[0\]: the key "text" is missing'):
        TokenTrie.from_payload({"descriptors": [{"tokenization": "any", "leaves": [{"name": "a", "tokens": [1]}]}]})
    for choices, message in (([], "none given"), (["a", ""], r"choices\[1\]: empty"), ("ab", "str where a list")):
        with pytest.raises(ArgumentError, match=message):
            TokenTrie.from_choices(llm, choices, tokenization="any")


@pytest.mark.parametrize("model", ["smollm2", "gemma", "tiny"])
@pytest.mark.parametrize("separator", [", ", ",", "\n- ", " | "])
def test_a_separator_is_spelled_as_within_a_text(request: pytest.FixtureRequest, model: str, separator: str) -> None:
    llm: Any = request.getfixturevalue(model)
    vocab = vocab_of(llm)
    tokens = inner_tokens(separator, "separator", vocab).tolist()
    assert vocab.detokenize(tokens) == separator.encode()


def test_tokens_stay_what_they_are(smollm2: Any) -> None:
    vocab = vocab_of(smollm2)
    assert inner_tokens([5, 6], "separator", vocab).tolist() == [5, 6]
    assert inner_tokens("", "separator", vocab).tolist() == []
    with pytest.raises(ArgumentError, match="separator: holds a NUL"):
        inner_tokens("\0", "separator", vocab)
