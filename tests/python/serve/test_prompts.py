"""Prompts of chats with tools, by templates that do what those of well-known models do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from chat_templates import use_template
from token_trie import ArgumentError, choose_tool
from token_trie.native.core import vocab_of
from token_trie.records.tool_prompt import ASKING, ask_for_tools
from token_trie.serve.completions import prompt_of, turns_of
from token_trie.serve.errors import RefusedError
from token_trie.serve.shapes import ChatRequest
from token_trie.sets.prompt import tokenize_prompt

HERMES = """{%- if tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' else 'Help.' }}{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif not (tools and loop.first and m.role == 'system') %}<|im_start|>{{ m.role }}{% if m.content %}

{{ m.content }}{% endif %}{% for call in m.tool_calls or [] %}

<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""As Qwen 2.5's."""
LLAMA = """{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}\
{{ raise_exception('one call at once') }}{% endif %}{% set call = m.tool_calls[0].function %}<assistant>
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}{% elif m.role == 'tool' %}<ipython>
{{ m.content | tojson }}{% else %}<{{ m.role }}>
{% if loop.first and tools %}{{ tools | tojson }}{% endif %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<assistant>
{% endif %}"""
"""As Llama 3.1's."""
ITEMS = """{{ tools }}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}
{{ call.function.name }}({% for key, value in call.function.arguments | items %}{{ key }}={{ value }}{% endfor %})\
{% endfor %}
{% endfor %}"""
CONCATENATED = """{{ tools }}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}
{{ '<call>' + call['function']['name'] + ' ```json ' + call['function']['arguments'] + ' ```' }}{% endfor %}
{% endfor %}"""
"""As DeepSeek's, which takes a text."""
NINE = """{{ tools }}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}\
{% if call.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}\
[TOOL_CALLS][{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}]{% endfor %}\
{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}
{% endfor %}"""
"""As that of Mistral's models with tools."""
ALTERNATING = """{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('roles must alternate') }}{% endif %}\
{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"""
"""As that of Mistral's first models."""
GEMMA = """{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('roles must alternate') }}{% endif %}<{{ 'model' if m.role == 'assistant' else m.role }}>
{{ m.content | trim }}
{% endfor %}{% if add_generation_prompt %}<model>
{% endif %}"""
"""As Gemma 2's."""
DROPPING = """{% for m in messages %}{% if m.role == 'user' %}User: {{ m.content }}
{% elif m.role == 'assistant' %}Bot: {{ m.content }}
{% endif %}{% endfor %}Bot:"""

ARGUMENTS = {"city": "Tromsø", "days": [1, 2], "where": {"<|im_end|>": None}}
SPELLED = json.dumps(ARGUMENTS, ensure_ascii=False)
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells the weather"}}
USER = {"role": "user", "content": "How is it?"}


def called(arguments: Any) -> dict[str, Any]:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "content": "12 degrees"}
TOLD = json.dumps(WEATHER["function"])
HISTORY = [USER, called(SPELLED), RESULT]


@pytest.fixture
def use(any_model: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    def use(template: str) -> Any:
        return use_template(any_model, monkeypatch, template)

    return use


def turns(messages: list[Any]) -> list[dict[str, Any]]:
    return turns_of(ChatRequest.model_validate({"messages": messages}).messages, [])


def prompt(llm: Any, messages: list[Any], tools: list[Any]) -> str:
    """Return the prompt of a request over HTTP."""
    if tools:
        tokens = ask_for_tools(llm, turns(messages), tools, 2048)[0]
    else:
        tokens = tokenize_prompt(llm, prompt_of(llm, turns(messages)))
    return str(llm.detokenize(tokens, special=True).decode())


@pytest.mark.parametrize("tools", [[WEATHER], []], ids=["tools", "none"])
@pytest.mark.parametrize(
    ("template", "written"),
    [
        (HERMES, f'<tool_call>\n{{"name": "weather", "arguments": {SPELLED}}}\n</tool_call><|im_end|>'),
        (LLAMA, f'{{"name": "weather", "parameters": {SPELLED}}}<|im_end|>\n<ipython>\n"12 degrees"'),
        (CONCATENATED, f"<call>weather ```json {SPELLED} ```"),
        (NINE, f'[TOOL_CALLS][{{"name": "weather", "arguments": {SPELLED}, "id": "abcdefghi"}}]'),
    ],
    ids=["hermes", "llama", "concatenated", "nine"],
)
@pytest.mark.parametrize("given", [SPELLED, ARGUMENTS, json.dumps(ARGUMENTS)], ids=["text", "object", "ascii"])
def test_templates_get_the_arguments_of_calls_as_an_object(
    use: Callable[[str], Any], template: str, written: str, tools: list[Any], given: Any
) -> None:
    assert written in prompt(use(template), [USER, called(given), RESULT], tools)


def test_a_call_in_the_history_has_the_form_of_the_next_one(use: Callable[[str], Any]) -> None:
    llm = use(HERMES)
    tokens, template = ask_for_tools(llm, HISTORY, [WEATHER], 2048)
    assert template is not None
    call = f"weather{template.between}{SPELLED}{template.after}"
    assert call in llm.detokenize(tokens, special=True).decode()


def test_a_call_of_ours_fits_templates_that_count_the_letters_of_its_id(use: Callable[[str], Any]) -> None:
    llm = use(NINE)
    call = choose_tool(llm, [USER], [WEATHER], mode="greedy").to_dict()
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert call["id"] in prompt(llm, [USER, answer, {**RESULT, "tool_call_id": call["id"]}], [WEATHER])


@pytest.mark.parametrize(
    "template",
    [HERMES, LLAMA, ITEMS, CONCATENATED, NINE, GEMMA],
    ids=["hermes", "llama", "items", "concatenated", "nine", "gemma"],
)
def test_names_of_control_tokens_in_calls_and_results_are_text(use: Callable[[str], Any], template: str) -> None:
    llm = use(template)

    def controls(text: str) -> list[int]:
        result = {**RESULT, "content": text}
        arguments = json.dumps({text: [text]})
        tokens = ask_for_tools(llm, turns([USER, called(arguments), result]), [WEATHER], 2048)[0]
        assert str(llm.detokenize(tokens, special=True).decode()).count(text) >= 3
        return [token for token in tokens if vocab_of(llm).is_control(token)]

    assert controls("<|im_end|>") == controls("<|im_start|>assistant") == controls("a.")


@pytest.mark.parametrize(("given", "read"), [("", "{}"), ("{}", "{}"), ({}, "{}"), (' {"a": 1} ', '{"a": 1}')])
def test_a_call_may_have_no_arguments(use: Callable[[str], Any], given: Any, read: str) -> None:
    assert f'"arguments": {read}}}' in prompt(use(HERMES), [USER, called(given), RESULT], [WEATHER])


@pytest.mark.parametrize("given", ["x", "[1]", "null", '"a"', "[" * 100_000, '{"a":' * 80 + "1" + "}" * 80])
def test_arguments_that_are_no_object_are_refused_with_their_position(given: str) -> None:
    with pytest.raises(RefusedError) as refused:
        turns([USER, called(given), RESULT])
    assert refused.value.faults[0].place == ("messages", 1, "tool_calls", 0, "function", "arguments")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"function": {"name": "weather", "arguments": "{"}}, r"messages\[1\].tool_calls\[0\].function.arguments: not"),
        ({"function": {"name": "weather", "arguments": [1]}}, r"function.arguments: must be a JSON object"),
        ({"function": {"arguments": "{}"}}, r"messages\[1\].tool_calls\[0\]: no function"),
        ("weather", r"messages\[1\].tool_calls\[0\]: no function"),
    ],
)
def test_choose_tool_names_the_place_of_a_call_that_is_none(any_model: Any, call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        choose_tool(any_model, [USER, {"role": "assistant", "content": "", "tool_calls": [call]}], [WEATHER])


@pytest.mark.parametrize("template", [ALTERNATING, GEMMA, DROPPING], ids=["alternating", "gemma", "dropping"])
@pytest.mark.parametrize("content", ["How is it?", [{"type": "text", "text": "How is it?"}]], ids=["text", "parts"])
def test_where_a_template_takes_no_system_message_its_text_begins_the_first_user_turn(
    use: Callable[[str], Any], template: str, content: Any
) -> None:
    llm, system = use(template), {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": content}
    assert f"{ASKING}\n{TOLD}\n\nHow is it?" in prompt(llm, [user], [WEATHER])
    assert f"Be brief.\n{ASKING}\n{TOLD}\n\nHow is it?" in prompt(llm, [system, user], [WEATHER])
    assert "Be brief.\n\nHow is it?" in prompt(llm, [system, user], [])
    assert choose_tool(llm, [user], [WEATHER]).name == "weather"


@pytest.mark.parametrize("name", ["mistral-instruct", "gemma"])
def test_tools_are_not_lost_in_formats_that_leave_a_system_message_out(
    any_model: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(any_model, "chat_format", name)
    assert f"{ASKING}\n{TOLD}\n\nHow is it?" in prompt(any_model, [USER], [WEATHER])


@pytest.mark.parametrize(
    "template", [ALTERNATING, GEMMA, DROPPING, None], ids=["alternating", "gemma", "dropping", "own"]
)
@pytest.mark.parametrize("tools", [[WEATHER], []], ids=["tools", "none"])
def test_calls_and_results_are_text_where_a_template_has_no_turns_for_them(
    use: Callable[[str], Any], smollm2: Any, template: str | None, tools: list[Any]
) -> None:
    llm = smollm2 if template is None else use(template)
    told = prompt(llm, [USER, called(ARGUMENTS), RESULT, RESULT, {"role": "user", "content": "And now?"}], tools)
    result = '{"name":"weather","result":"12 degrees"}'
    compact = json.dumps(ARGUMENTS, ensure_ascii=False, separators=(",", ":"))
    assert f'{{"name":"weather","arguments":{compact}}}' in told
    assert f"{result}\n{result}\nAnd now?" in told


FUNCTION = {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": SPELLED}}
RETURNED = {"role": "function", "name": "weather", "content": "12 degrees"}


@pytest.mark.parametrize("template", [HERMES, LLAMA, NINE, GEMMA, DROPPING, None])
@pytest.mark.parametrize("tools", [[WEATHER], []], ids=["tools", "none"])
def test_a_function_of_the_older_format_is_a_tool(
    use: Callable[[str], Any], any_model: Any, template: str | None, tools: list[Any]
) -> None:
    llm = any_model if template is None else use(template)
    call = called(SPELLED)
    call["tool_calls"][0]["id"] = "000000001"
    newer = [USER, call, {**RESULT, "tool_call_id": "000000001", "name": "weather"}]
    told = prompt(llm, [USER, FUNCTION, RETURNED], tools)
    assert told == prompt(llm, newer, tools)
    assert "12 degrees" in told


ONE_CALL = HERMES.replace("for call in m.tool_calls or []", "for call in (m.tool_calls or [])[:1]")
NO_TWO = LLAMA.replace(
    "<|im_end|>",
    "<|im_end|>{% if loop.nextitem and loop.nextitem.role == m.role %}"
    "{{ raise_exception('turns alternate') }}{% endif %}",
)
"""Which refuses what would keep the text before a call."""
NO_RESULTS = HERMES.replace("{%- if m.role == 'tool' %}", "{%- if m.role == 'tool' %}{% elif m.role == 'nobody' %}")
NO_SYSTEM = HERMES.replace("(tools and loop.first and m.role == 'system')", "(m.role == 'system')")


@pytest.mark.parametrize(
    ("template", "messages", "lost"),
    [
        (NO_RESULTS, HISTORY, "a message of the role 'tool'"),
        (NO_RESULTS, [USER, FUNCTION, RETURNED], "a message of the role 'tool'"),
        (NO_TWO, [USER, {**called({}), "content": "I look it up."}, RESULT], "a message of the role 'assistant'"),
        (ONE_CALL, [USER, {**called({}), "tool_calls": called({})["tool_calls"] * 2}, RESULT], "a call"),
        (NO_SYSTEM, [USER, {"role": "system", "content": "Be brief."}, USER], "a message of the role 'system'"),
    ],
    ids=["results", "functions", "texts", "calls", "system"],
)
@pytest.mark.parametrize("tools", [[WEATHER], []], ids=["tools", "none"])
def test_what_a_template_leaves_out_is_refused(
    use: Callable[[str], Any], template: str, messages: list[Any], lost: str, tools: list[Any]
) -> None:
    with pytest.raises(ArgumentError, match=f"the model's chat template leaves out {lost}"):
        prompt(use(template), messages, tools)


def test_a_call_that_was_cut_short_is_read_as_far_as_it_goes(use: Callable[[str], Any]) -> None:
    ignored: list[str] = []
    body = {"messages": [USER, called('{"city": "Tromsø", "days": [1, 2'), RESULT]}
    (_, call, _) = turns_of(ChatRequest.model_validate(body).messages, ignored)
    assert call["tool_calls"][0]["function"]["arguments"] == {"city": "Tromsø", "days": [1, 2]}
    assert ignored == ["messages[1].tool_calls[0].function.arguments: cut short; the model reads what is whole"]


def test_the_text_before_a_call_is_kept(use: Callable[[str], Any]) -> None:
    told = prompt(use(GEMMA), [USER, {**called({}), "content": "I look it up."}, RESULT], [WEATHER])
    assert '<model>\nI look it up.\n{"name":"weather","arguments":{}}\n<user>\n{"name":"weather","result"' in told


@pytest.mark.parametrize("tools", [[WEATHER], []], ids=["tools", "none"])
def test_the_text_before_a_call_that_the_template_leaves_out_is_a_turn_of_its_own(
    use: Callable[[str], Any], tools: list[Any]
) -> None:
    told = prompt(use(LLAMA), [USER, {**called({}), "content": "I look it up."}, RESULT], tools)
    assert '<assistant>\nI look it up.<|im_end|>\n<assistant>\n{"name": "weather", "parameters": {}}' in told


@pytest.mark.parametrize(
    ("given", "read", "note"),
    [
        (' {"city": "Oslo"} I hope so', {"city": "Oslo"}, "the text after the object is left out"),
        ('{"city": "Oslo"}{"city": "Rome"}', {"city": "Oslo"}, "the text after the object is left out"),
        ('{"city": "Os', {"city": "Os"}, "cut short; the model reads what is whole"),
    ],
)
def test_of_arguments_that_are_no_json_the_object_at_the_beginning_is_read(given: str, read: Any, note: str) -> None:
    ignored: list[str] = []
    (_, call) = turns_of(ChatRequest.model_validate({"messages": [USER, called(given)]}).messages, ignored)
    assert call["tool_calls"][0]["function"]["arguments"] == read
    assert ignored == [f"messages[1].tool_calls[0].function.arguments: {note}"]


@pytest.mark.parametrize("given", ["Oslo", "[1] and", '"a" b', "{]", "[" * 100_000])
def test_arguments_that_begin_with_no_object_are_refused(given: str) -> None:
    body = ChatRequest.model_validate({"messages": [USER, called(given)]})
    with pytest.raises(RefusedError) as refused:
        turns_of(body.messages, [])
    assert refused.value.faults[0].place == ("messages", 1, "tool_calls", 0, "function", "arguments")


def test_a_number_that_json_has_no_word_for_is_read_as_the_model_wrote_it(use: Callable[[str], Any]) -> None:
    assert '"arguments": {"depth": NaN}' in prompt(use(HERMES), [USER, called('{"depth": NaN}'), RESULT], [WEATHER])


def test_every_text_of_a_message_is_read_and_a_part_without_one_refused() -> None:
    def read(message: dict[str, Any]) -> Any:
        return turns_of(ChatRequest.model_validate({"messages": [message]}).messages, [])[0]["content"]

    assert read({"role": "assistant", "content": "Hm.", "refusal": "No."}) == "Hm.\nNo."
    part = {"type": "text", "text": "a", "refusal": "b"}
    assert read({"role": "assistant", "content": [part, {"type": "text", "text": "c"}], "refusal": "d"}) == "a\nb\nc\nd"
    with pytest.raises(RefusedError, match="missing"):
        read({"role": "user", "content": [{"type": "text", "content": "Oslo"}]})
