from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import oracle
import pytest
from serving import Serving
from token_trie import choose
from token_trie.records.tools import OPENINGS, text_before
from token_trie.serve.answers import OfToken, TextStream, as_completion
from token_trie.serve.bodies import parse
from token_trie.serve.errors import RefusedError, dotted
from token_trie.serve.shapes import ChatRequest, CompletionRequest

FRANCE = "The capital of France is"


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, prompt: Any = FRANCE, **options: Any) -> Any:
    return client.completions.create(model="any", prompt=prompt, **options)


def test_a_prompt_goes_on_as_llama_cpp_python_has_it(client: openai.OpenAI, any_model: Any) -> None:
    theirs = any_model.create_completion(FRANCE, max_tokens=3, temperature=0)
    ours = ask(client, max_tokens=3, temperature=0)
    assert ours.choices[0].text == theirs["choices"][0]["text"]
    assert ours.usage.prompt_tokens == theirs["usage"]["prompt_tokens"]
    assert ours.choices[0].finish_reason == "length"


def test_prompts_of_texts_and_tokens_have_answers_each_in_order(client: openai.OpenAI, any_model: Any) -> None:
    prompts = [FRANCE, "The capital of Italy is"]
    tokens = [any_model.tokenize(prompt.encode()) for prompt in prompts]
    options: Any = {"extra_body": {"guided_choice": ["Paris", "Rome"]}}
    for given in (prompts, tokens):
        answer = ask(client, given, **options)
        assert [choice.text for choice in answer.choices] == ["Paris", "Rome"]
        assert answer.usage.prompt_tokens == sum(map(len, tokens))
    assert ask(client, tokens[1], **options).choices[0].text == "Rome"
    drawn = ask(client, prompts, seed=1, max_tokens=4)
    assert [choice.index for choice in drawn.choices] == [0, 1]


def test_a_choice_is_that_of_the_package(client: openai.OpenAI, any_model: Any) -> None:
    choices = ["READ_FILE", "SEND_MAIL", "READ"]
    prompt = "Request: show me notes.txt\nAction:"
    answer = ask(client, prompt, extra_body={"structured_outputs": {"choice": choices}})
    assert answer.choices[0].text == choose(any_model, prompt, choices).value


def test_a_stream_of_several_says_what_the_whole_says(client: openai.OpenAI) -> None:
    prompts = ["Numbers: 1, 2, 3, 4,", "Letters: A, B, C, D,"]
    options: Any = {"temperature": 0, "max_tokens": 12, "stop": ["7", "G"]}
    whole = ask(client, prompts, **options)
    told = ["", ""]
    for chunk in ask(client, prompts, stream=True, **options):
        told[chunk.choices[0].index] += chunk.choices[0].text
    assert told == [choice.text for choice in whole.choices] == [" 5, 6, ", " E, F, "]


def test_tokens_have_their_probabilities(client: openai.OpenAI) -> None:
    told = ask(client, temperature=0, max_tokens=4, logprobs=2).choices[0]
    assert "".join(told.logprobs.tokens) == told.text
    for token, logprob, others in zip(
        told.logprobs.tokens, told.logprobs.token_logprobs, told.logprobs.top_logprobs, strict=True
    ):
        assert logprob == others[token] == pytest.approx(max(others.values()), abs=0.15)
    assert told.logprobs.text_offset[1] == len(told.logprobs.tokens[0])


@pytest.mark.parametrize("name", ["smollm2", "gemma"], ids=["49,152 tokens", "262,144 tokens"])
def test_log_probabilities_are_the_models_own_whatever_the_size_of_its_vocabulary(
    request: pytest.FixtureRequest, model_paths: dict[str, Path], name: str
) -> None:
    llm = request.getfixturevalue(name)
    prompt = llm.tokenize(FRANCE.encode())
    with Serving(model_paths[name]) as serving:
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0, "logprobs": 20}
        told = httpx.post(f"{serving.url}/v1/completions", json=body, timeout=60).json()["choices"][0]["logprobs"]
        stream = httpx.post(f"{serving.url}/v1/completions", json={**body, "stream": True}, timeout=60).text
        chosen = {**body, "guided_choice": [" Paris", " Rome"]}
        choice = httpx.post(f"{serving.url}/v1/completions", json=chosen, timeout=60).json()["choices"][0]
    assert [len(others) for others in told["top_logprobs"]] == [20, 20, 20]
    tokens = llm.tokenize(FRANCE.encode() + "".join(told["tokens"]).encode())[len(prompt) :]
    assert told["token_logprobs"] == pytest.approx(oracle.logprobs(llm, prompt, tuple(tokens)), abs=0.15)
    assert '"token_logprobs"' in stream
    assert '"error"' not in stream
    paris = tuple(llm.tokenize(choice["text"].encode(), add_bos=False))
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(oracle.logprobs(llm, prompt, paris), abs=0.15)


def test_pieces_of_characters_are_named_by_their_bytes_and_stand_where_the_character_does(url: str) -> None:
    body = {"prompt": "Hello", "max_tokens": 60, "logprobs": 20, "temperature": 1.5, "seed": 3}
    told = httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]
    tokens, offsets = told["logprobs"]["tokens"], told["logprobs"]["text_offset"]
    assert sum(token.startswith("bytes:") for token in tokens) > 3
    for i, (token, offset, others) in enumerate(zip(tokens, offsets, told["logprobs"]["top_logprobs"], strict=True)):
        assert len(others) == 20
        assert list(others.values()) == sorted(others.values(), reverse=True)
        if token in others:
            assert others[token] == told["logprobs"]["token_logprobs"][i]
        if not token.startswith("bytes:"):
            assert told["text"].startswith(token, offset)


def test_tokens_that_look_alike_keep_their_own_probabilities() -> None:
    euro = "€".encode()
    found = [
        OfToken(b" a", -1.0, [(euro[:1], -0.5), (euro[1:2], -0.7), (b" a", -1.0)], b" a"),
        OfToken(euro[:2], -0.5, [(euro[:2], -0.5), (b"<s>", -0.7), (b"<s>", -0.9)], euro[:2]),
        OfToken(euro[2:], -0.9, [(b"\n", -0.2), (b"\n", -0.9)], euro[2:]),
        OfToken(b"\n", -0.9, [(b"\n", -0.2), (b"\n", -0.9)], b"\n"),
        OfToken(b"<s>", -1.0, [], b""),
        OfToken(b"b", -2.0, [], b"b"),
    ]
    told = as_completion(found)
    assert told["tokens"] == [" a", r"bytes:\xe2\x82", r"bytes:\xac", "\n", "<s>", "b"]
    assert told["text_offset"] == [0, 2, 2, 3, 4, 4], "in ' a€\\nb'"
    assert told["top_logprobs"][:4] == [
        {r"bytes:\xe2": -0.5, r"bytes:\x82": -0.7, " a": -1.0},
        {r"bytes:\xe2\x82": -0.5, "<s>": -0.7, r"bytes:\x3c\x73\x3e": -0.9},
        {"\n": -0.2, r"bytes:\x0a": -0.9},
        {r"bytes:\x0a": -0.2, "\n": -0.9},
    ]
    assert as_completion([])["text_offset"] == []


def test_seed_minus_one_draws_anew(url: str) -> None:
    def drawn(seed: int) -> str:
        body = {"prompt": "Hello", "max_tokens": 24, "seed": seed}
        return str(httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["text"])

    assert len({drawn(-1) for _ in range(3)}) == 3
    assert drawn(-2) == drawn(-2)
    assert drawn(7) == drawn(7)


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        ({"temperature": "0.7"}, "temperature", "Input should be a valid number"),
        ({"top_p": True}, "top_p", "Input should be a valid number"),
        ({"stop": 5}, "stop", "Input should be a valid string or a valid list"),
        ({"stop": ["a", 3]}, "stop[1]", "Input should be a valid string"),
        ({"stop": ["a"] * 17}, "stop", "List should have at most 16 items"),
        ({"prompt": {}}, "prompt", "Input should be a valid string or a valid list"),
        ({"prompt": ["a", 1]}, "prompt[1]", "Input should be a valid string"),
        ({"prompt": [1, "a"]}, "prompt[1]", "Input should be a valid integer"),
        ({"prompt": [[1], [2, "a"]]}, "prompt[1][1]", "Input should be a valid integer"),
        ({"prompt": [-1]}, "prompt[0]", "Input should be greater than or equal to 0"),
        ({"prompt": [{}]}, "prompt[0]", "Input should be a valid string or a valid integer or a valid list"),
        ({"stream": "yes"}, "stream", "Input should be a valid boolean"),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_with_the_types_that_may_stand_there(
    change: dict[str, Any], place: str, message: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        parse(CompletionRequest, {"prompt": "x", **change})
    (fault,) = refused.value.faults
    assert dotted(fault.place) == place
    assert fault.message.startswith(message)


@pytest.mark.parametrize(
    ("message", "place", "told"),
    [
        ({"role": "user", "content": 5}, ".content", "Input should be a valid string or a valid list"),
        ({"role": "user", "content": [{"type": "x"}]}, ".content[0].type", "Input should be 'text', 'input_text'"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, ".content[0].text", "Input should be a valid str"),
        ({"role": "user", "content": [{"type": "text", "refusal": 5}]}, ".content[0].refusal", "Input should be a val"),
        ({"content": "x"}, ".role", "Field required"),
        (5, "", "Input should be a valid dictionary"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": 5}}]},
            ".tool_calls[0].function.arguments",
            "Input should be a valid string or a valid dictionary",
        ),
    ],
)
def test_a_wrong_part_of_a_message_is_refused_with_its_position(message: Any, place: str, told: str) -> None:
    with pytest.raises(RefusedError) as refused:
        parse(ChatRequest, {"messages": [message]})
    (fault,) = refused.value.faults
    assert dotted(fault.place) == f"messages[0]{place}"
    assert fault.message.startswith(told)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"max_tokens": 100_000},
        {"tools": [TOOL], "tool_choice": "none"},
    ],
    ids=["nothing said", "more", "tools"],
)
def test_a_text_ends_where_the_context_is_full(full: str, more: dict[str, Any]) -> None:
    kinds = [("chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})]
    kinds += [("completions", {"prompt": "Hello"})] if "max_tokens" in more else []
    for kind, prompt in kinds:
        body = {"temperature": 0, "stop": "none such", **prompt, **more}
        answer = httpx.post(f"{full}/v1/{kind}", json=body, timeout=60).json()
        assert answer["choices"][0]["finish_reason"] == "length", answer
        assert answer["usage"]["total_tokens"] == 448, "seven eighths of the context"


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused(full: str) -> None:
    for n, n_more, status in ((447, 9, 200), (448, 0, 200), (448, 9, 400)):
        answer = httpx.post(f"{full}/v1/completions", json={"prompt": [5] * n, "max_tokens": n_more})
        assert answer.status_code == status
    assert (
        "448 tokens and an answer of up to 1 do not fit the context of 448; --n-ctx of the server"
        in answer.json()["error"]["message"]
    )


@pytest.fixture(scope="module")
def full(model_paths: dict[str, Path]) -> Iterator[str]:
    """Where a server with a small context listens."""
    with Serving(model_paths["tiny"], "--n-ctx", "512") as serving:
        yield serving.url


def test_names_of_control_tokens_are_text_unless_asked_for(client: openai.OpenAI, any_model: Any) -> None:
    end = any_model.detokenize([any_model.token_eos()], special=True).decode()
    prompt = f"{end}user\nHi{end}\n{end}"
    as_text = ask(client, prompt, max_tokens=1).usage.prompt_tokens
    as_tokens = ask(client, prompt, max_tokens=1, extra_body={"parse_special": True}).usage.prompt_tokens
    assert as_text > as_tokens + 4


def test_a_model_without_a_template_is_asked_in_plain_text(model_paths: Any) -> None:
    with Serving(model_paths["tiny"]) as serving:
        client = openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0)
        messages: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        chat = client.chat.completions.create(model="any", messages=messages, max_tokens=8, temperature=0)
        plain = ask(client, "system: Be brief.\n\nuser: Hi\n\nassistant:", max_tokens=8, temperature=0, stop="\nuser:")
        assert chat.usage is not None
        assert chat.usage.prompt_tokens == plain.usage.prompt_tokens
        assert chat.choices[0].message.content == plain.choices[0].text
        tool = {"type": "function", "function": {"name": "now"}}
        called = client.chat.completions.create(model="any", messages=messages, tools=[tool], tool_choice="required")  # type: ignore[call-overload]
        assert called.choices[0].message.tool_calls[0].function.arguments == "{}"


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [-1]},
        {"prompt": [10_000_000]},
        {"prompt": ["x"] * 129},
        {"prompt": "x", "echo": True},
        {"prompt": "x", "suffix": "y"},
        {"prompt": "x", "best_of": 2},
        {"prompt": "x" * 200_000},
    ],
    ids=range(9),
)
def test_what_cannot_be_answered_is_refused(client: openai.OpenAI, change: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        ask(client, **change)


@pytest.mark.parametrize("opening", ["\n\nAction: ", "\n```json\n", " <tools>\n"])
def test_a_text_that_ends_before_a_call_is_streamed_without_what_opens_the_call(byte_level: Any, opening: str) -> None:
    sent: list[str] = []
    stream = TextStream(byte_level, ["{", *OPENINGS], sent.append, text_before)
    for token in byte_level.tokenize(f"Sure.{opening}".encode(), add_bos=False):
        stream([token])
    stream.end(text_before(f"Sure.{opening}"))
    assert "".join(sent) == "Sure."
