from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

QUESTIONS = [
    {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
    {
        "type": "choice",
        "name": "team",
        "instructions": [{"type": "input_text", "text": "Which team should handle it?"}],
        "choices": [{"value": "billing", "description": "Payments, invoices, refunds"}, {"value": True}],
    },
    {"type": "score", "instructions": "How angry is it?", "levels": [{"label": "calm"}, {"label": "angry"}]},
]


@pytest.fixture
def client(server: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_openais_client_reads_every_kind_of_answer(client: openai.OpenAI) -> None:
    decision = client.decisions.create(model="any", input="I was charged twice.", questions=QUESTIONS)  # type: ignore[arg-type]
    urgent, team, mood = decision.answers
    assert urgent.type == "predicate"
    assert urgent.name == "urgent"
    assert 0 <= urgent.probability <= 1
    assert team.type == "choice"
    assert [option.value for option in team.probabilities] == ["billing", True]
    assert team.choice == max(team.probabilities, key=lambda option: option.probability).value
    assert mood.type == "score"
    assert mood.name is None
    assert [(level.label, level.value) for level in mood.probabilities] == [("calm", 0), ("angry", 1)]
    usage = decision.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert (
        usage.input_tokens_details.cached_tokens + usage.input_tokens_details.cache_write_tokens == usage.input_tokens
    )


def test_openais_asynchronous_client_reads_messages_and_calls(server: str) -> None:
    given = [
        {"role": "system", "content": "You help customers."},
        {"role": "user", "content": [{"type": "input_json", "data": {"order": 7, "charged": [5, 5]}}]},
        {"type": "function_call", "call_id": "1", "name": "look_up", "arguments": '{"order": 7}'},
        {"type": "function_call_output", "call_id": "1", "output": "charged twice"},
    ]

    async def ask() -> openai.types.Decision:
        async with openai.AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
            return await client.decisions.create(model="any", input=given, questions=QUESTIONS)  # type: ignore[arg-type]

    assert len(asyncio.run(ask()).answers) == 3


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "content": "x"}]}]},
            "input[0].content[0].text",
        ),
        ({"questions": []}, "questions"),
        ({"questions": QUESTIONS[:1] * 401}, "questions"),
        ({"questions": [{**QUESTIONS[1], "choices": [{"value": "a"}] * 2}]}, "questions[0].choices"),
        ({"questions": [{**QUESTIONS[1], "choices": [{"value": str(i)} for i in range(256)]}]}, "questions[0].choices"),
    ],
)
def test_what_does_not_fit_is_an_error_with_its_position(
    client: openai.OpenAI, change: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.decisions.create(**{"model": "any", "input": "x", "questions": QUESTIONS, **change})  # type: ignore[arg-type]
    assert refused.value.param == param
