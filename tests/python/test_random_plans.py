"""Random plans: the same alone, in a batch, after a handle and in the server, and nothing is left behind.

The plans of a seed are always the same. RANDOM_PLANS says how many on each model, and RANDOM_PLANS_SEED which come
first.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from architectures import HYBRID
from tiny_model import sentence_pieces
from token_trie import CancelledError, Choice, Contextual, Predicate, StreamHandle, Think, TokenTrieError, Weights
from token_trie.decisions.choose import choose_plan, score_plan
from token_trie.decisions.lists import ListRequest
from token_trie.decisions.options import ListOptions
from token_trie.decisions.request import TextRequest
from token_trie.llama.text import TextOptions
from token_trie.native.lifetime import attachment
from token_trie.plan import Ask, AskBeside, AskOn, Keep, Model, Plan, Query, run, run_many, together
from token_trie.questions.decide import about, decide_plan, prepare_all
from token_trie.questions.options import DecideOptions
from token_trie.records.fill import fill_plan
from token_trie.serve.engine import Engine
from token_trie.sets.trie import TokenTrie

N_PLANS = int(os.environ.get("RANDOM_PLANS", "100"))
SEED = int(os.environ.get("RANDOM_PLANS_SEED", "0"))
AT_ONCE = 50
HYBRIDS = ["lfm2", "granitehybrid", "qwen35"]
NEAR = {"tiny": 1e-5} | dict.fromkeys(HYBRIDS, 1e-4)

CITIES = [" Paris", " Pa", " Rome", " Oslo", " Pizza", " Bern", " ris"]
STATES = ["I paid twice.", "Pizza in Paris?", "No."]
WITHOUT = ["Answer:", "Where?"]
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"enum": ["x", "yz"]}, "b": {"type": "boolean"}}, "required": ["a", "b"]},
    {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 2},
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"]},
]


def some(rng: random.Random) -> list[str]:
    return rng.sample(CITIES, rng.randint(2, len(CITIES)))


def choice(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    choices = some(rng)
    ways: list[dict[str, Any]] = [
        {},
        {"n_best": 2},
        {"mode": "greedy"},
        {"mode": "sampled", "seed": rng.randrange(99)},
        {"mode": "aligned", "seed": rng.randrange(99)},
        {"mode": "beam", "beam_width": 4},
        {"probabilities": True},
        {"calibration": Contextual(rng.choice(WITHOUT))},
        {"calibration": Contextual(rng.choice(WITHOUT)), "max_scored": 1},
        {"calibration": Weights(np.arange(len(choices)))},
        {"think": Think("!", max_tokens=rng.randint(0, 4), temperature=rng.choice([0.0, 1.0]), seed=rng.randrange(99))},
    ]
    decision = yield from choose_plan(model, tokens, choices, **rng.choice(ways))
    shares = None if decision.probabilities is None else decision.probabilities.tolist()
    return decision.value, decision.tokens, decision.thought, decision.logprob, decision.branch_logprob, shares


def scores(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    ways: list[dict[str, Any]] = [
        {},
        {"leaf_end": "follow"},
        {"normalize": "tokens"},
        {"normalize": "prior"},
        {"calibration": Contextual(rng.choice(WITHOUT))},
    ]
    return (yield from score_plan(model, tokens, some(rng), **rng.choice(ways))).tolist()


def record(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    mode = rng.choice(["exact", "greedy", "sampled"])
    found = yield from fill_plan(
        model, tokens, rng.choice(SCHEMAS), mode=mode, seed=rng.randrange(99) if mode == "sampled" else None
    )
    return found.text, found.probabilities


def listed(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    found = yield from ListRequest.read(some(rng), ListOptions(max_items=rng.randint(1, 3))).plan(model, tokens)
    return found.text, found.stop, found.logprob


def written(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    drawn = TextOptions(temperature=rng.choice([0.0, 1.0]), seed=rng.randrange(99))
    found = yield from TextRequest(rng.randint(0, 6), drawn).plan(model, tokens)
    return found.tokens, found.stop


def decided(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    questions = {"where": Choice("Where?", some(rng)), "is": Predicate(rng.choice(["Is it?", "Paid?"]))}
    read = DecideOptions.read("decide", {"calibration": rng.choice([None, "contextual"])})
    prepared = prepare_all(questions, read, model.llm)
    answers = yield from decide_plan(model, prepared, about(model, rng.choice(STATES)))
    return [(answer.value, *answer.probabilities.values()) for answer in answers.values()]


def steps(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    """Ask several steps at once, among them priors that other plans ask too."""
    trie = TokenTrie.from_choices(model.llm, CITIES)
    own = Query("scores", trie)
    prompt = rng.choice(WITHOUT)
    before = model.tokenize(prompt)
    kinds: list[Callable[[], Any]] = [
        lambda: Ask(before, own, ("a plan's own", prompt)),
        lambda: AskBeside(before, own),
        lambda: AskOn(tokens, own),
        lambda: Ask(tokens, own),
        lambda: Ask(tokens, Query("greedy", trie)),
        lambda: Keep(tokens),
    ]
    answers = yield [rng.choice(kinds)() for _ in range(rng.randint(0, 5))]
    return [(answer.leaf, answer.tokens, answer.logprobs.tolist()) for answer in answers]


def failing(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    """Fail before the first step, or in one of several."""
    if rng.random() < 0.3:
        return (yield from choose_plan(model, tokens, ["x" * 3000, "y"]))
    own = Query("text", max_tokens=2)
    given = [Ask(tokens, own) for _ in range(rng.randint(0, 2))] + [Ask([10**6], own)]
    rng.shuffle(given)
    return (yield given)


def recovering(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    try:
        return (yield from failing(rng, model, tokens))
    except CancelledError:
        raise
    except TokenTrieError as error:
        return type(error).__name__, (yield from scores(rng, model, tokens))


def beside(rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
    parts = rng.choices([choice, scores, record, decided, steps, recovering], k=rng.randint(0, 3))
    return (yield from together([part(random.Random(rng.random()), model, tokens) for part in parts]))


PARTS = [choice, choice, scores, record, listed, written, decided, steps, recovering, beside]


class RandomPlan:
    """A plan of a seed; `left` are the tokens that it leaves in a handle."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.left: list[int] = []

    def __call__(self, model: Model, tokens: list[int]) -> Plan[Any]:
        plan = self._parts(random.Random(self.seed), model, tokens)
        step, error = next(plan), None
        while True:
            try:
                answers = yield step
            except TokenTrieError as raised:
                error = raised
            try:
                if error is not None:
                    raised, error = error, None
                    step = plan.throw(raised)
                else:
                    self._leave(step, answers)
                    step = plan.send(answers)
            except StopIteration as end:
                return end.value

    def _leave(self, steps: Any, answers: Any) -> None:
        for step, answer in zip(steps, answers, strict=True):
            if isinstance(step, Keep) or (step.key is None and not isinstance(step, AskBeside)):
                self.left = [*step.tokens, *answer.tokens]

    def _parts(self, rng: random.Random, model: Model, tokens: list[int]) -> Plan[Any]:
        results = []
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.5:
                tokens = model.append(tokens, f" {rng.randrange(5)}. Answer:")
            results.append((yield from rng.choice(PARTS)(rng, model, tokens)))
        if rng.random() < 0.1:
            yield from failing(rng, model, tokens)
        yield [Keep(tokens)] if rng.random() < 0.5 else [Ask(tokens, Query("text", max_tokens=2))]
        return results


def opened(path: Path) -> Any:
    return llama_cpp.Llama(str(path), n_ctx=1024, n_threads=1, n_threads_batch=1, type_k=0, type_v=0, verbose=False)


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the type of its error."""
    try:
        return call()
    except TokenTrieError as error:
        return type(error)


def check_same(found: Any, alone: Any, seed: int, near: float) -> None:
    if isinstance(alone, dict):
        found, alone = list(found.items()), list(alone.items())
    if isinstance(alone, (list, tuple)):
        assert len(found) == len(alone), seed
        for one, other in zip(found, alone, strict=True):
            check_same(one, other, seed, near)
    elif isinstance(alone, float):
        assert found == pytest.approx(alone, rel=near, abs=near), seed
    else:
        assert found == alone, seed


def chunks() -> list[list[RandomPlan]]:
    plans = [RandomPlan(SEED + i) for i in range(N_PLANS)]
    return [plans[i : i + AT_ONCE] for i in range(0, N_PLANS, AT_ONCE)]


def prompt_of(llm: Any, plan: RandomPlan) -> list[int]:
    return list(llm.tokenize(f"Request {plan.seed % 7}.".encode()))


def forget_priors(llm: Any) -> None:
    attachment(llm).known.pop("priors", None)


def each(model: Model, given: tuple[RandomPlan, list[int]]) -> Plan[Any]:
    plan, tokens = given
    return plan(model, tokens)


async def served(engine: Engine, given: list[tuple[RandomPlan, list[int]]], rng: random.Random) -> list[Any]:
    """Return the results of plans in the server; those that are cancelled have None."""
    tasks = [asyncio.create_task(engine.read(one, each)) for one in given]
    for task in rng.sample(tasks, len(tasks) // 5):
        await asyncio.sleep(rng.random() * 0.01)
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    driver = engine._driver
    assert driver is not None
    for _ in range(1000):
        if driver.is_idle:
            break
        await asyncio.sleep(0.01)
    assert (driver._waiting, driver._tickets, driver._keys, driver._early) == ({}, {}, {}, {})
    assert (engine._woken, engine._read) == ({}, {})
    return [
        None
        if isinstance(one, asyncio.CancelledError)
        else type(one)
        if isinstance(one, TokenTrieError)
        else one.result
        for one in found
    ]


@pytest.fixture(scope="module", params=NEAR)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return a model, and how near its figures come to one another."""
    path = tmp_path_factory.mktemp("plans") / f"{request.param}.gguf"
    if request.param == "tiny":
        path = request.getfixturevalue("model_paths")["tiny"]
    else:
        HYBRID[request.param](path, sentence_pieces())
    return path, NEAR[request.param]


@pytest.fixture(scope="module")
def llm(model: tuple[Path, float]) -> Iterator[Any]:
    llm = opened(model[0])
    yield llm
    llm.close()


@pytest.mark.parametrize("plans", chunks(), ids=lambda plans: f"{plans[0].seed}")
def test_a_random_plan_is_the_same_wherever_it_runs(
    model: tuple[Path, float], llm: Any, plans: list[RandomPlan], caplog: pytest.LogCaptureFixture
) -> None:
    path, near = model
    given = [(plan, prompt_of(llm, plan)) for plan in plans]
    alone = [outcome(lambda one=one: run(llm, one, each)) for one in given]  # type: ignore[misc]

    forget_priors(llm)
    many = list(run_many(llm, given, each, on_error="return"))
    for plan, own, found in zip(plans, alone, many, strict=True):
        check_same(type(found) if isinstance(found, TokenTrieError) else found, own, plan.seed, near)

    forget_priors(llm)
    with StreamHandle(llm, n_ctx=1024) as handle:
        for (plan, tokens), own in zip(given, alone, strict=True):
            handle.prefill(tokens)
            check_same(outcome(lambda plan=plan: handle.run(plan)), own, plan.seed, near)  # type: ignore[misc]
            assert handle.tokens == (tokens if isinstance(own, type) else plan.left), plan.seed

    async def serve() -> list[Any]:
        engine = Engine(opened(path))
        try:
            return await served(engine, given, random.Random(plans[0].seed))
        finally:
            await asyncio.to_thread(engine.close)

    for plan, own, found in zip(plans, alone, asyncio.run(serve()), strict=True):
        if found is not None:
            check_same(found, own, plan.seed, near)
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_a_llama_that_a_plan_closes_between_two_steps_ends_the_rows(model_paths: dict[str, Path]) -> None:
    llm = opened(model_paths["tiny"])

    def plan(model: Model, tokens: list[int]) -> Plan[None]:
        yield [Ask(tokens, Query("text", max_tokens=1))]
        llm.close()
        yield [Ask(tokens, Query("text", max_tokens=1))]

    with pytest.raises(CancelledError):
        list(run_many(llm, [[1], [1, 2]], plan))


def test_a_plan_that_asks_a_prior_twice_at_once_goes_on_once(precise: Any) -> None:
    query = Query("scores", TokenTrie.from_choices(precise, CITIES))

    def plan(_: Model, tokens: list[int]) -> Plan[bool]:
        first, second = yield [Ask(tokens, query, ("twice", *tokens))] * 2
        (third,) = yield [Ask(tokens, query)]
        return first is second and third.logprobs.tolist() == pytest.approx(first.logprobs.tolist(), rel=NEAR["tiny"])

    assert list(run_many(precise, [[1], [1, 2], [1]], plan)) == [True] * 3
