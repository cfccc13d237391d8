"""Bodies, within limits of memory and time."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest
from token_trie.serve.answers import _n_held_back
from token_trie.serve.app import connections
from token_trie.serve.bodies import parse, value_of
from token_trie.serve.decisions import claim_readings
from token_trie.serve.errors import RefusedError
from token_trie.serve.limits import Budget, Limits
from token_trie.serve.shapes import ChatRequest, CompletionRequest, DecisionRequest, SystemOneRequest
from uvicorn.protocols.http.h11_impl import H11Protocol

LIMITS = Limits()
N = 1_000_000


def refused(call: Any, *given: Any) -> RefusedError:
    started = time.process_time()
    with pytest.raises(RefusedError) as told:
        call(*given)
    assert time.process_time() - started < 1
    return told.value


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (CompletionRequest, {"prompt": [None] * N}),
        (CompletionRequest, {"prompt": [[0.5] * N]}),
        (CompletionRequest, {"prompt": "a", "stop": [1] * N}),
        (ChatRequest, {"messages": [0] * N}),
        (ChatRequest, {"messages": [{"role": "user", "content": [0] * N}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": "a"}], "tools": [0] * N}),
        (DecisionRequest, {"model": "m", "input": [0] * N, "questions": []}),
        (DecisionRequest, {"model": "m", "input": "a", "questions": [0] * N}),
        (DecisionRequest, {"model": "m", "input": "a", "questions": [{"type": "choice", "choices": [0] * N}]}),
        (SystemOneRequest, {"state": "a", "questions": dict.fromkeys(map(str, range(N)), 0)}),
        (
            SystemOneRequest,
            {"state": "a", "questions": {"q": {"type": "choice", "criteria": dict.fromkeys(map(str, range(N)), 0)}}},
        ),
    ],
    ids=range(11),
)
def test_a_body_of_faults_is_refused_at_the_first_of_them(shape: Any, body: Any) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusal = refused(parse, shape, body)
    assert 1 <= len(refusal.faults) <= 16
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_faults_keep_their_positions_and_members_their_order() -> None:
    question = {"type": "noul"}
    names = [f"q{i}" for i in range(100)]
    read = parse(SystemOneRequest, {"state": "a", "questions": dict.fromkeys(names, question)})
    assert list(read.questions) == names
    refusal = refused(
        parse, SystemOneRequest, {"state": "a", "questions": {**dict.fromkeys(names, question), "q70": 0}}
    )
    assert [fault.place for fault in refusal.faults] == [("questions", "q70")]
    few = dict.fromkeys(names[:3], 0)
    assert len(refused(parse, SystemOneRequest, {"state": "a", "questions": few}).faults) == 3


QUESTION = {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None}}


@pytest.mark.parametrize(
    ("key", "given", "meant"),
    [
        ("instruction", {"type": "noul"}, "instructions"),
        ("x_mas", {"type": "choice", "x_set": "products"}, "x_mask"),
        ("criterias", {"type": "choice", "x_set": "products"}, "criteria"),
        ("note", QUESTION, None),
        ("instruction", QUESTION, None),
    ],
)
def test_a_misspelt_key_of_a_question_is_refused_and_another_is_ignored(
    key: str, given: Any, meant: str | None
) -> None:
    body = {"state": "a", "questions": {"q": {**given, key: "Is it right?"}}}
    if meant is None:
        assert parse(SystemOneRequest, body).questions.keys() == {"q"}
        return
    refusal = refused(parse, SystemOneRequest, body)
    assert [(fault.place, fault.message) for fault in refusal.faults] == [
        (("questions", "q"), f"unknown key {key}; is {meant} meant?")
    ]


@pytest.mark.parametrize(
    ("shape", "body", "place", "message"),
    [
        (SystemOneRequest, {"questions": {"q": {**QUESTION, "x_form": "listed"}}}, ("questions", "q"), "x_form has no"),
        (SystemOneRequest, {"questions": {"q": {"type": "noul", "x_set": "a"}}}, ("questions", "q"), "x_set has no"),
        (SystemOneRequest, {"questions": {"q": QUESTION}, "x_top": 1}, (), "x_top has no effect here"),
        (
            ChatRequest,
            {"messages": [{"role": "user"}], "x_reproducible": True},
            (),
            "x_reproducible has no effect here",
        ),
        (CompletionRequest, {"prompt": "a", "x_mask": "AQ=="}, (), "x_mask has no effect here"),
        (
            SystemOneRequest,
            {"questions": {"q": {"type": "noul", "criteria": {"yes": "a"}}}},
            ("questions", "q", "criteria", "yes"),
            "Input should be 'true' or 'false'",
        ),
    ],
)
def test_an_option_where_it_has_no_effect_is_refused(shape: Any, body: Any, place: Any, message: str) -> None:
    refusal = refused(parse, shape, {"state": "a", **body} if shape is SystemOneRequest else body)
    (fault,) = refusal.faults
    assert fault.place == place
    assert message in fault.message


def test_a_misspelt_option_is_refused_and_keys_of_other_servers_are_ignored() -> None:
    body = {"state": "a", "questions": {"q": QUESTION}, "x_trace_id": "1", "seed": 7}
    parse(SystemOneRequest, body)
    assert "x_calibration" in refused(parse, SystemOneRequest, {**body, "x_calibraton": None}).message
    assert "temperature" in refused(parse, CompletionRequest, {"prompt": "a", "temprature": 0}).message
    parse(
        CompletionRequest,
        {"prompt": "a", "user": "me", "logit_bias": None, "best_of": 1, "guided_decoding_backend": ""},
    )


def test_a_refusal_does_not_say_back_what_was_sent() -> None:
    long = "x" * N
    for questions in ({long: 0}, {"q": {"type": long}}):
        refusal = refused(parse, SystemOneRequest, {"state": "a", "questions": questions})
        assert all(len(str(fault.place)) + len(fault.message) < 2000 for fault in refusal.faults)


def test_more_values_than_memory_are_refused_before_they_are_read() -> None:
    for data in (b"[" + b"0," * (4 << 20) + b"0]", b"[" + b"[]," * (3 << 20) + b"0]", b'{"a":' * (2 << 20)):
        refusal = refused(value_of, data, LIMITS, Budget(LIMITS.memory).claim())
        assert refusal.kind == "too_large"


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 400 + ".0"])
def test_a_number_that_no_answer_could_say_again_is_refused(number: str) -> None:
    data = b'{"guided_choice": {"a": [%s], "b": 2}}' % number.encode()
    assert refused(value_of, data, LIMITS, Budget(LIMITS.memory).claim()).faults[0].kind == "finite_number"
    assert value_of(b'{"a": 1e308}', LIMITS, Budget(LIMITS.memory).claim()) == {"a": 1e308}


def test_heads_are_read_by_a_parser_that_limits_them() -> None:
    assert issubclass(connections(1), H11Protocol)


def test_requests_share_memory_and_small_ones_always_have_some() -> None:
    budget = Budget(1 << 20)
    first, second = budget.claim(), budget.claim()
    first.add(900 << 10)
    assert refused(second.add, 900 << 10).kind == "busy"
    second.add(64 << 10)
    first.release()
    second.add(836 << 10)
    second.release()
    assert refused(first.add, 2 << 20).kind == "too_large"
    third = budget.claim()
    third.add(1 << 20)
    third.release()


@pytest.mark.parametrize(
    ("n_questions", "n_options", "orders", "is_right"),
    [(400, 255, 1, True), (400, 3, 64, True), (6, 255, 64, True), (400, 255, 64, False), (10, 255, 64, False)],
)
def test_readings_of_a_request_are_bounded_and_the_refusal_counts_them(
    n_questions: int, n_options: int, orders: int, is_right: bool
) -> None:
    criteria = dict.fromkeys(map(str, range(n_options)))
    questions = {f"q{i}": {"type": "choice", "criteria": criteria} for i in range(n_questions)}
    body = parse(SystemOneRequest, {"state": "a", "questions": questions, "x_orders": orders})
    claim = Budget(LIMITS.memory).claim()
    if is_right:
        claim_readings(body, LIMITS, claim)
        return
    refusal = refused(claim_readings, body, LIMITS, claim)
    assert f"{n_questions * orders:,} readings of {n_questions * n_options * orders:,} options" in refusal.message
    assert "several requests" in refusal.message


def test_what_may_begin_a_stop_string_is_found_in_one_pass() -> None:
    assert _n_held_back("one two st", ["stop", "two st!"]) == 6
    assert _n_held_back("one", ["x"]) == 0
    assert _n_held_back("", ["stop"]) == 0
    started = time.process_time()
    assert _n_held_back("a" * 100_000, ["a" * 999 + "b"] * 16) == 999
    assert _n_held_back("ab" * 50_000, ["ab" * 400 + "c" * 100] * 16) == 800
    assert time.process_time() - started < 0.5
    assert refused(parse, CompletionRequest, {"prompt": "a", "stop": ["a" * 1001]}).faults[0].place[0] == "stop"
