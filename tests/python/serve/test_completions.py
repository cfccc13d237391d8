from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from serving import Serving
from token_trie import choose

FRANCE = "The capital of France is"


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, prompt: Any = FRANCE, **options: Any) -> Any:
    return client.completions.create(model="any", prompt=prompt, **options)


def test_a_prompt_goes_on_as_llama_cpp_python_has_it(client: openai.OpenAI, smollm2: Any) -> None:
    theirs = smollm2.create_completion(FRANCE, max_tokens=3, temperature=0)
    ours = ask(client, max_tokens=3, temperature=0)
    assert ours.choices[0].text == theirs["choices"][0]["text"]
    assert ours.usage.prompt_tokens == theirs["usage"]["prompt_tokens"]
    assert ours.choices[0].finish_reason == "length"


def test_prompts_of_texts_and_tokens_have_answers_each_in_order(client: openai.OpenAI, smollm2: Any) -> None:
    prompts = [FRANCE, "The capital of Italy is"]
    tokens = [smollm2.tokenize(prompt.encode()) for prompt in prompts]
    options: Any = {"extra_body": {"guided_choice": ["Paris", "Rome"]}}
    for given in (prompts, tokens):
        answer = ask(client, given, **options)
        assert [choice.text for choice in answer.choices] == ["Paris", "Rome"]
        assert answer.usage.prompt_tokens == sum(map(len, tokens))
    assert ask(client, tokens[1], **options).choices[0].text == "Rome"
    drawn = ask(client, prompts, n=2, seed=1, max_tokens=4)
    assert [choice.index for choice in drawn.choices] == [0, 1, 2, 3]


def test_a_choice_is_that_of_the_package(client: openai.OpenAI, smollm2: Any) -> None:
    choices = ["READ_FILE", "SEND_MAIL", "READ"]
    prompt = "Request: show me notes.txt\nAction:"
    alone = choose(smollm2, prompt, choices, probabilities=True)
    answer = ask(client, prompt, extra_body={"structured_outputs": {"choice": choices}})
    told = {each["value"]: each["probability"] for each in answer.choices[0].model_extra["x_distribution"]}
    searched = ask(client, prompt, extra_body={"structured_outputs": {"choice": choices}, "x_distribution": False})
    assert answer.choices[0].text == searched.choices[0].text == alone.value
    assert searched.choices[0].model_extra["x_distribution"] is None
    assert told == pytest.approx({choice: alone.probability(choice) for choice in choices}, abs=0.02)


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
        assert logprob == max(others.values()) == others[token]
    assert told.logprobs.text_offset[1] == len(told.logprobs.tokens[0])


def test_names_of_control_tokens_are_text_unless_asked_for(client: openai.OpenAI) -> None:
    prompt = "<|im_start|>user\nHi<|im_end|>\n"
    as_text = ask(client, prompt, max_tokens=1).usage.prompt_tokens
    as_tokens = ask(client, prompt, max_tokens=1, extra_body={"parse_special": True}).usage.prompt_tokens
    assert as_text > as_tokens + 4


def test_a_model_without_a_template_is_asked_in_plain_text(model_paths: Any) -> None:
    with Serving(model_paths["gemma"]) as serving:
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


def test_a_grammar_that_does_not_parse_is_told_why_and_printed_nowhere(model_paths: Any) -> None:
    with Serving(model_paths["tiny"]) as serving:
        client = openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0)
        for wrong, why in (
            ("root ::= secret-of-mine", "Undefined rule identifier 'secret-of-mine'"),
            ("root ::= (secret-of-mine", "expecting"),
            ("secret-of-mine = a", "expecting ::="),
            ('secret-of-mine ::= "a"', "no rule root"),
            ("root ::= root secret-of-mine\nsecret-of-mine ::= root", "begins with itself"),
        ):
            with pytest.raises(openai.BadRequestError, match=re.escape(why)):
                ask(client, extra_body={"grammar": wrong})
        assert ask(client, extra_body={"grammar": 'root ::= "a"'}).choices[0].text == "a"
    assert "secret" not in serving.told
    assert "Traceback" not in serving.told


def test_a_server_for_strangers_takes_no_grammars(model_paths: Any) -> None:
    with Serving(model_paths["tiny"], "--no-grammars") as serving:
        client = openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.BadRequestError, match="grammar"):
            ask(client, extra_body={"grammar": 'root ::= "a"'})
        assert ask(client, extra_body={"guided_choice": ["a", "b"]}).choices[0].text in "ab"


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
