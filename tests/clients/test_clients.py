"""Clients as they are, against a server with SmolLM2; only its address and the key are set. Run by `make test-clients`.

The clients do not fit into one environment: each is imported where it is used.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

SERVER = os.environ["TOKEN_TRIE_URL"]
V1 = f"{SERVER}/v1"
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
STATE = "I was charged twice."
TEAMS: dict[str, Any] = {"billing": "Payments, invoices, refunds", "technical": "Bugs and outages"}
ASK = "Where is the Eiffel Tower?"
MESSAGES: list[Any] = [{"role": "user", "content": ASK}]
CITIES = ("Paris", "Rome")


class Place(BaseModel):
    """A city."""

    city: Literal["Paris", "Rome"]
    is_capital: bool


TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Weather in a city", "parameters": Place.model_json_schema()},
}


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Rain in {city}"


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    """Collect the connections that LangChain's clients do not close, before another test is told of them."""
    yield
    gc.collect()


def check(team: Any, urgent: float, anger: float) -> None:
    assert team.choice in TEAMS
    assert sum(team.probabilities.values()) == pytest.approx(1)
    assert 0 <= urgent <= 1
    assert 0 <= anger <= 1


def test_openai() -> None:
    import openai

    async def read() -> str:
        async with openai.AsyncOpenAI(base_url=V1, api_key="none") as client:
            stream = await client.chat.completions.create(model="any", messages=MESSAGES, max_tokens=4, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(read())
    with openai.OpenAI(base_url=V1, api_key="none") as client:
        assert client.models.list().data[1].id == "jev-latest"
        choice: Any = {"structured_outputs": {"choice": CITIES}}
        chosen = client.chat.completions.create(model="any", messages=MESSAGES, extra_body=choice)
        assert chosen.choices[0].message.content in CITIES
        parsed = client.beta.chat.completions.parse(model="any", messages=MESSAGES, response_format=Place)
        assert isinstance(parsed.choices[0].message.parsed, Place)
        tool = openai.pydantic_function_tool(Place)
        given: Any = {"model": "any", "messages": MESSAGES, "tools": [tool], "tool_choice": "required"}
        called = client.chat.completions.parse(**given).choices[0].message.tool_calls
        assert isinstance(called[0].function.parsed_arguments, Place)
        with client.chat.completions.stream(**given) as stream:
            deltas = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
            (choice,) = stream.get_final_completion().choices
        assert choice.finish_reason == "tool_calls"
        assert len(deltas) > 1
        assert "".join(deltas) == choice.message.tool_calls[0].function.arguments
        answer = client.decisions.create(
            model="any",
            input=STATE,
            questions=[
                {"type": "choice", "name": "team", "instructions": "Which?", "choices": [{"value": v} for v in TEAMS]},
                {"type": "predicate", "name": "urgent", "instructions": "Is it urgent?"},
                {"type": "score", "name": "mood", "instructions": "How angry?", "levels": [{"label": "calm"}] * 2},
            ],
        )
        assert [one.type for one in answer.answers] == ["choice", "predicate", "score"]
        with pytest.raises(openai.BadRequestError, match="logit_bias: is not supported here"):
            client.chat.completions.create(model="any", messages=MESSAGES, logit_bias={"1": 1})


def test_litellm_completions() -> None:
    import litellm

    to: Any = {"model": "openai/any", "api_base": V1, "api_key": "none", "messages": MESSAGES}
    assert litellm.completion(**to, max_tokens=4).choices[0].message.content
    chunks = litellm.completion(**to, max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    record = litellm.completion(**to, response_format=Place).choices[0].message.content
    Place.model_validate_json(record)
    tools: Any = {"tools": [TOOL], "tool_choice": "required"}
    whole = litellm.completion(**to, **tools)
    pieces = litellm.stream_chunk_builder(list(litellm.completion(**to, **tools, stream=True)))
    for answer in (whole, pieces):
        Place.model_validate_json(answer.choices[0].message.tool_calls[0].function.arguments)
    chosen = litellm.completion(**{**to, "model": "hosted_vllm/any"}, guided_choice=CITIES)
    assert chosen.choices[0].message.content in CITIES


def test_litellm_decisions() -> None:
    import litellm

    team = {"type": "choice", "name": "team", "instructions": "Which team?", "choices": [{"value": v} for v in TEAMS]}
    for model in ("openai/any", "hosted_vllm/any"):
        found = litellm.decisions(model=model, api_base=V1, api_key="none", input=STATE, questions=[team])
        assert found.answers[0].choice in TEAMS
    questions = {
        "team": {"type": "choice", "instructions": "Which team?", "criteria": TEAMS},
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
        "mood": {"type": "score", "instructions": "How angry is it?", "criteria": ["calm", "angry"]},
    }
    to: Any = {"model": "typesafe/jev-latest", "api_base": SERVER, "api_key": "none"}
    answers = litellm.systemone(**to, state={"ticket": STATE}, questions=questions).answers
    check(answers["team"], answers["urgent"].noul, answers["mood"].score)


def test_langchain_decision_model() -> None:
    from langchain.agents import create_agent
    from langchain.agents.middleware import ModelChoice, ModelRouterMiddleware
    from langchain_core.decisions import BaseDecisionModel, Choice, ClassifierResponse, Noul, Score
    from langchain_openai import ChatOpenAI
    from typesafe_sdk import TypeSafeClient

    class Decisions(BaseDecisionModel):
        @property
        def _provider(self) -> str:
            return "token-trie"

        def _classify(self, state: Any, questions: Any) -> ClassifierResponse:
            with TypeSafeClient(api_key="none", base_url=SERVER) as client:
                given = {name: one.model_dump(by_alias=True, exclude_none=True) for name, one in questions.items()}
                found = client.system_one(state=state, questions=given, model=self.model)
            return ClassifierResponse.model_validate(found.model_dump())

    model = Decisions(model="jev-latest")
    asked: Any = {
        "team": Choice(instructions="Which team?", criteria=TEAMS),
        "urgent": Noul(instructions="Is it urgent?"),
        "mood": Score(instructions="How angry is it?", criteria=["calm", "angry"]),
    }
    for found in (
        model.invoke({"state": STATE, "questions": asked}),
        asyncio.run(model.ainvoke({"state": STATE, "questions": asked})),
    ):
        check(found.choices["team"], found.nouls["urgent"].noul, found.scores["mood"].score)
    chat = ChatOpenAI(base_url=V1, api_key="none", model="any", max_tokens=4)
    routes = {name: ModelChoice(model=chat, criteria=text) for name, text in TEAMS.items()}
    router = ModelRouterMiddleware(choices=routes, instructions="Which team?", classifier=model)
    done = create_agent(chat, middleware=[router]).invoke({"messages": MESSAGES})
    assert done["model_route"].choice in TEAMS
    assert done["messages"][-1].content


def test_langchain_openai_decisions() -> None:
    from langchain_core.messages import HumanMessage
    from langchain_openai import decisions

    client = decisions.OpenAIDecisions(model="any", base_url=V1, api_key="none")
    questions = {
        "team": decisions.Choice(instructions="Which team?", choices=TEAMS),
        "urgent": decisions.Predicate(instructions="Is it urgent?"),
        "mood": decisions.Score(instructions="How angry is it?", levels=["calm", "angry"]),
    }
    for found in (
        client.invoke({"input": STATE, "questions": questions}),
        asyncio.run(client.ainvoke({"input": [HumanMessage(STATE)], "questions": questions})),
    ):
        check(found.choices["team"], found.predicates["urgent"].probability, found.scores["mood"].score)


def test_langchain_typesafe() -> None:
    import langchain_typesafe as lc
    from langchain_core.messages import HumanMessage

    classifier = lc.TypeSafeClassifier(api_key="none", base_url=SERVER)
    questions = {
        "team": lc.Choice(instructions="Which team?", criteria=TEAMS),
        "urgent": lc.Noul(instructions="Is it urgent?"),
        "mood": lc.Score(instructions="How angry is it?", criteria=["calm", "angry"]),
    }
    for found in (
        classifier.invoke({"state": STATE, "questions": questions}),
        asyncio.run(classifier.ainvoke({"state": [HumanMessage(STATE)], "questions": questions})),
    ):
        check(found.choices["team"], found.nouls["urgent"].noul, found.scores["mood"].score)


def test_langchain_chat() -> None:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=V1, api_key="none", model="any")
    assert isinstance(chat.invoke("Hello!", max_tokens=5).content, str)
    assert "".join(str(chunk.content) for chunk in chat.stream("Hello!", max_tokens=5))
    assert isinstance(chat.with_structured_output(Place).invoke(ASK), Place)
    assert isinstance(chat.with_structured_output(Place, method="function_calling").invoke(ASK), Place)
    called = chat.bind_tools([TOOL], tool_choice="any").invoke("How is it in Rome?")
    assert called.tool_calls[0]["args"]["city"] in CITIES
    agent = create_agent(chat, tools=[], response_format=Place)
    assert isinstance(agent.invoke({"messages": MESSAGES})["structured_response"], Place)


def test_llamaindex_selectors() -> None:
    from llama_index.core.selectors import LLMSingleSelector, PydanticMultiSelector, PydanticSingleSelector
    from llama_index.llms.openai_like import OpenAILike

    to: Any = {"model": "any", "api_base": V1, "api_key": "none", "is_chat_model": True}
    llm = OpenAILike(**to, is_function_calling_model=True)
    teams = list(TEAMS.values())
    for selector in (PydanticSingleSelector, PydanticMultiSelector):  # whose schemas have any integers
        found = selector.from_defaults(llm=llm).select(teams, STATE)
        assert all(isinstance(index, int) for index in found.inds)
    one = {"type": "object", "properties": {"choice": {"enum": [1, 2]}, "reason": {"type": "string"}}}
    array = {"type": "array", "items": {**one, "required": ["choice", "reason"]}, "minItems": 1, "maxItems": 1}
    schema = {"response_format": {"type": "json_schema", "json_schema": {"name": "answers", "schema": array}}}
    found = LLMSingleSelector.from_defaults(llm=OpenAILike(**to, additional_kwargs=schema)).select(teams, STATE)
    assert found.ind in (0, 1)


def test_llamaindex_records_and_tools() -> None:
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike

    to: Any = {"model": "any", "api_base": V1, "api_key": "none", "is_chat_model": True, "max_tokens": 64}
    llm = OpenAILike(**to, is_function_calling_model=True)
    assert "".join(part.delta or "" for part in llm.stream_complete("Hello!", max_tokens=5))
    assert isinstance(llm.as_structured_llm(Place).complete(ASK).raw, Place)
    called = llm.predict_and_call([FunctionTool.from_defaults(weather)], user_msg="How is it?", tool_required=True)
    assert str(called).startswith("Rain in ")


def test_instructor() -> None:
    import instructor
    from openai import OpenAI

    with OpenAI(base_url=V1, api_key="none") as openai:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
            client = instructor.from_openai(openai, mode=mode)
            to: Any = {"model": "any", "messages": MESSAGES, "response_model": Place, "max_retries": 0}
            assert isinstance(client.chat.completions.create(**to), Place)
        *_, last = instructor.from_openai(openai).chat.completions.create_partial(**to)
        Place.model_validate(last.model_dump())
    client = instructor.from_provider("openai/any", base_url=V1, api_key="none")
    assert isinstance(client.create(messages=MESSAGES, response_model=Place), Place)


def test_pydantic_ai() -> None:
    from pydantic_ai import Agent, NativeOutput, RunContext
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("any", provider=OpenAIProvider(base_url=V1, api_key="none"))
    assert isinstance(Agent(model, model_settings={"max_tokens": 5}).run_sync("Hello!").output, str)
    assert isinstance(Agent(model, output_type=Place).run_sync(ASK).output, Place)
    assert isinstance(Agent(model, output_type=NativeOutput(Place)).run_sync(ASK).output, Place)

    async def read() -> list[Place]:
        async with Agent(model, output_type=Place).run_stream(ASK) as result:
            return [part async for part in result.stream_output()]

    assert isinstance(asyncio.run(read())[-1], Place)
    agent = Agent(model, output_type=Place)
    cities = []

    # SmolLM2 calls again and again, so it has the tool in the first step only.
    async def first(context: RunContext[None], tool: Any) -> Any:
        return tool if context.run_step == 1 else None

    @agent.tool_plain(prepare=first)
    def forecast(city: Literal["Paris", "Rome"]) -> str:
        """Return the weather in a city."""
        cities.append(city)
        return weather(city)

    assert isinstance(agent.run_sync("Call forecast for Rome.").output, Place)
    assert set(cities) <= set(CITIES)


def test_dspy() -> None:
    import dspy

    class Locate(dspy.Signature):
        """Find the city."""

        question: str = dspy.InputField()
        city: Literal["Paris", "Rome"] = dspy.OutputField()

    # Any other name is of a model without schemas for DSPy, which then asks for them in words.
    lm = dspy.LM("openai/gpt-4o-mini", api_base=V1, api_key="none", cache=False)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        assert dspy.Predict(Locate)(question=ASK).city in CITIES
        assert dspy.ChainOfThought(Locate)(question=ASK).city in CITIES


def test_typesafe_sdk() -> None:
    from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, Score, TypeSafeClient

    questions: Any = {
        "team": Choice(instructions="Which team?", criteria=TEAMS),
        "urgent": Noul(instructions="Is it urgent?"),
        "mood": Score(instructions="How angry is it?", criteria=["calm", "angry"]),
    }

    async def ask() -> Any:
        async with AsyncTypeSafeClient(api_key="none", base_url=SERVER) as client:
            return await client.system_one(state=STATE, questions=questions, model="jev-latest")

    with TypeSafeClient(api_key="none", base_url=SERVER) as client:
        for found in (client.system_one(state=STATE, questions=questions, model="jev-latest"), asyncio.run(ask())):
            check(found.choices["team"], found.nouls["urgent"].noul, found.scores["mood"].score)


def test_pydecide() -> None:
    import decide
    from decide.backends.openai_decisions import OpenAIDecisionsBackend
    from decide.backends.typesafe import TypeSafeBackend

    questions = {
        "team": decide.Choice("Which team?", TEAMS),
        "urgent": decide.Noul("Is it urgent?"),
        "mood": decide.Score("How angry is it?", ["calm", "angry"]),
    }
    for backend in (TypeSafeBackend("none", base_url=SERVER), OpenAIDecisionsBackend("none", base_url=V1)):
        with decide.Client([backend]) as client:
            found = client.decide(STATE, questions)
        check(found["team"], found["urgent"].noul, found["mood"].score)


def test_jev_eval(tmp_path: Path) -> None:
    rows = [{"state": f"{STATE} Order {i}.", "labels": {"team": "billing", "urgent": True}} for i in range(4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {"questions": {"team": {"type": "choice", "instructions": "Which team?", "criteria": TEAMS}}}
    config["questions"]["urgent"] = {"type": "noul", "instructions": "Is it urgent?"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [str(Path(sys.executable).with_name("jev-eval"))]
    run = [*command, "run", "--data", "rows.jsonl", "--config", "config.json", "--cache", "run.jsonl"]
    environment = {"JEV_API_KEY": "none", "TYPESAFE_AI_BASE_URL": V1, "PATH": ""}
    subprocess.run(run, cwd=tmp_path, env=environment, check=True, capture_output=True)
    report = subprocess.run(
        [*command, "report", "--cache", "run.jsonl"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "team" in report.stdout
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) >= len(rows)


def test_the_page_has_the_versions_that_ran_and_the_names_of_the_tests() -> None:
    tests = {name for name in globals() if name.startswith("test_") and not name.startswith("test_the_page")}
    assert set(re.findall(r"`(test_\w+)`", PAGE)) == tests
    pinned = [file.read_text() for file in (ROOT / "constraints").glob("clients*.txt")]
    ran = set(re.findall(r"^([\w-]+)(?:\[\w+\])?==(.*)$", "\n".join(pinned), re.MULTILINE))
    ran |= set(json.loads((ROOT / "tests" / "clients" / "package.json").read_text())["dependencies"].items())
    said = set(re.findall(r"^\| `([\w@/-]+)` \| ([\w.]+) \|", PAGE, re.MULTILINE))
    assert said <= ran
    assert len(said) > 15
