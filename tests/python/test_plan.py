"""Plans driven by hand, by `next` and `send`: the answers are made up, and no model runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from tiny_model import write_tiny_model
from token_trie import ArgumentError, Choice, ContextError, Contextual, Think, TokenTrie, Weights
from token_trie.decisions.choose import choose_plan, score_plan
from token_trie.decisions.lists import ListRequest
from token_trie.decisions.options import ListOptions, RecordOptions, ScoreOptions
from token_trie.decisions.request import TextRequest
from token_trie.llama.drivers import Run
from token_trie.llama.text import TextOptions
from token_trie.native.ffi import lib, new_struct
from token_trie.plan import Answer, Ask, AskBeside, Keep, Model, Plan, Query, Step, together
from token_trie.questions.decide import about, decide_plan, prepare_all
from token_trie.questions.options import DecideOptions
from token_trie.questions.searched import N_FOUND
from token_trie.records.tools import read_tools, tool_request
from token_trie.show.explain import ExplainRequest

CITIES = [" Paris", " Rome", " Oslo"]
PROMPT = "Where? Answer:"
EVEN = [-1.0, -1.5, -2.0]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path: Path = tmp_path_factory.mktemp("vocabulary") / "bpe.gguf"
    write_tiny_model(path, is_bpe=True)
    llm = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    yield llm
    llm.close()


@pytest.fixture
def model(vocabulary: Any) -> Model:
    return replace(Model.of(vocabulary, 512), known={})


def asked(steps: Any, *modes: str) -> list[Ask]:
    """Return the steps, which ask queries of these modes."""
    assert [step.query.mode for step in steps] == list(modes)
    return list(steps)


def figures(**known: Any) -> Any:
    return new_struct("token_trie_answer_info", **known)


def scores(logprobs: list[float]) -> Answer:
    return Answer(logprobs=np.array(logprobs))


def found(leaves: list[int], logprobs: list[float], **known: Any) -> Answer:
    return Answer(
        leaf=leaves[0], leaves=np.array(leaves), logprobs=np.array(logprobs), figures=figures(mass_max=1.0, **known)
    )


def result(plan: Plan[Any], *answers: Answer) -> Any:
    """Return the result of a plan that these answers end."""
    with pytest.raises(StopIteration) as end:
        plan.send(list(answers))
    return end.value.value


def kept(plan: Plan[Any], *answers: Answer) -> tuple[list[int], Any]:
    """Return the tokens that a plan keeps after these answers, and its result."""
    (step,) = plan.send(list(answers))
    assert isinstance(step, Keep)
    return step.tokens, result(plan, Answer())


def text(model: Model, tokens: list[int]) -> str:
    return model.vocab.detokenize(tokens).decode()


def spelled(model: Model, written: str) -> tuple[int, ...]:
    return tuple(model.append([1], written)[1:])


# choose


def test_a_choice_is_the_best_that_a_search_found(model: Model) -> None:
    plan = choose_plan(model, PROMPT, CITIES, n_best=2)
    (step,) = asked(next(plan), "best")
    assert (step.tokens, step.query.n_best, step.key) == (model.tokenize(PROMPT), 2, None)
    tokens, decision = kept(plan, found([2, 0], [-0.5, -1.5], rival_max=-3.0))
    assert (decision.value, decision.index, decision.logprob, decision.lead) == (" Oslo", 2, -0.5, 1.0)
    assert [one.value for one in decision.candidates] == [" Oslo", " Paris"]
    assert text(model, tokens).endswith("Answer: Oslo")


def test_a_search_that_ended_early_proves_nothing(model: Model) -> None:
    plan = choose_plan(model, PROMPT, CITIES, max_nodes=1)
    asked(next(plan), "best")
    assert not kept(plan, found([2], [-0.5], gap=0.25))[1].proved


@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_a_choice_step_by_step_is_the_leaf_that_was_written(model: Model, mode: Any) -> None:
    plan = choose_plan(model, PROMPT, {" Paris": 75, " Rome": 0}, mode=mode)
    asked(next(plan), mode)
    tokens, decision = kept(plan, Answer(leaf=1, logprob=-0.25, tokens=spelled(model, " Rome")))
    assert (decision.value, decision.branch_logprob, decision.logprob) == (0, -0.25, None)
    assert text(model, tokens).endswith("Answer: Rome")


def test_probabilities_are_those_of_all_scores(model: Model) -> None:
    plan = choose_plan(model, PROMPT, CITIES, probabilities=True)
    asked(next(plan), "scores")
    _, decision = kept(plan, scores(EVEN))
    p = np.exp(EVEN) / np.exp(EVEN).sum()
    assert (decision.value, decision.probabilities) == (" Paris", pytest.approx(p))
    assert decision.mass == pytest.approx(np.exp(EVEN).sum())


def test_an_aligned_draw_is_among_what_top_k_leaves(model: Model) -> None:
    plan = choose_plan(model, PROMPT, CITIES, mode="aligned", top_k=1, seed=1)
    asked(next(plan), "scores")
    assert kept(plan, scores([-3.0, -1.0, -2.0]))[1].value == " Rome"


def test_no_finite_score_decides_nothing(model: Model) -> None:
    plan = choose_plan(model, PROMPT, CITIES, probabilities=True)
    next(plan)
    with pytest.raises(ContextError, match="no answer of the set a finite score"):
        plan.send([scores([-math.inf] * 3)])


def test_weights_go_with_the_search(model: Model) -> None:
    plan = choose_plan(model, PROMPT, CITIES, calibration=Weights([0.0, 2.0, 0.0]))
    (step,) = asked(next(plan), "best")
    assert step.query.leaf_weights is not None
    assert step.query.leaf_weights.tolist() == [0.0, 2.0, 0.0]


def test_equal_contextual_choices_have_one_key_and_the_prior_is_subtracted(model: Model) -> None:
    plans = [choose_plan(model, prompt, CITIES, calibration=Contextual("Answer:")) for prompt in (PROMPT, "Answer:")]
    priors = [asked(next(plan), "scores")[0] for plan in plans]
    assert priors[0].tokens == model.tokenize("Answer:")
    assert priors[0].key is not None
    assert priors[0].key == priors[1].key
    (step,) = asked(plans[0].send([scores([-0.5, -3.0, -3.0])]), "best")
    assert (step.key, step.tokens) == (None, model.tokenize(PROMPT))
    assert step.query.leaf_weights is not None
    assert step.query.leaf_weights.tolist() == [0.5, 3.0, 3.0]
    assert kept(plans[0], found([1], [-1.5]))[1].calibration == "contextual"


def test_a_prior_of_another_prompt_or_of_other_choices_has_another_key(model: Model) -> None:
    variants = [(CITIES, "Answer:"), (CITIES, "A:"), (CITIES[:2], "Answer:")]
    plans = [choose_plan(model, PROMPT, cities, calibration=Contextual(prompt)) for cities, prompt in variants]
    assert len({asked(next(plan), "scores")[0].key for plan in plans}) == 3


def test_of_a_large_set_only_what_was_found_is_weighed_against_its_prior(model: Model) -> None:
    plan = choose_plan(model, PROMPT, CITIES, calibration=Contextual("Answer:"), max_scored=2)
    asked(next(plan), "best")
    (prior,) = asked(plan.send([found([2, 0], [-0.5, -1.5])]), "scores")
    assert isinstance(prior, AskBeside)
    assert prior.key is not None
    _, decision = kept(plan, scores([-0.5, -4.0]))
    assert (decision.value, decision.gap) == (" Paris", math.inf)


def test_a_choice_that_cannot_be_is_refused_before_the_first_step(model: Model) -> None:
    for wrong, message in (({"choices": []}, "none given"), ({"calibration": Weights([1.0])}, "1 weights for 3")):
        with pytest.raises(ArgumentError, match=message):
            next(choose_plan(model, PROMPT, **{"choices": CITIES, **wrong}))


def test_a_text_goes_after_tokens_and_after_none_of_them_it_is_refused(model: Model) -> None:
    assert text(model, model.append(model.tokenize("It is"), " no")) == "It is no"
    with pytest.raises(ArgumentError, match="tokens: none given"):
        model.append([], " no")


# score


def test_scores_are_in_the_order_of_the_choices_and_equal_choices_share_one(model: Model) -> None:
    plan = score_plan(model, PROMPT, [*CITIES, " Paris"])
    (step,) = asked(next(plan), "scores")
    assert step.query.leaf_end == "any"
    assert result(plan, scores(EVEN)).tolist() == [*EVEN, EVEN[0]]


def test_a_normalized_score_asks_the_prior_beside_and_subtracts_it(model: Model) -> None:
    plan = score_plan(model, PROMPT, CITIES, normalize="prior")
    step, prior = asked(next(plan), "scores", "scores")
    assert isinstance(prior, AskBeside)
    assert (step.key, prior.tokens) == (None, [1])
    assert prior.key is not None
    assert result(plan, scores(EVEN), scores([-0.5, -0.5, -3.0])).tolist() == [-0.5, -1.0, 1.0]


def test_a_score_by_tokens_is_divided_by_their_number(model: Model) -> None:
    plan = score_plan(model, PROMPT, [" Paris", " yes"], normalize="tokens")
    next(plan)
    lengths = [len(spelled(model, one)) for one in (" Paris", " yes")]
    assert result(plan, scores([-1.0, -2.0])) == pytest.approx([-1 / lengths[0], -2 / lengths[1]])


# lists, thoughts, texts


def list_plan(model: Model, **options: Any) -> Plan[Any]:
    return ListRequest.read(CITIES, ListOptions(**options)).plan(model, PROMPT)


def test_a_list_is_what_was_written_with_the_places_of_its_items(model: Model) -> None:
    plan = list_plan(model, max_items=2)
    (step,) = asked(next(plan), "greedy")
    written = spelled(model, " Oslo, Paris")
    middle = len(spelled(model, " Oslo,"))
    answer = Answer(
        tokens=written,
        leaves=np.array([2, 0]),
        logprobs=np.array([-0.5, -0.25]),
        ranges=np.array([0, middle - 1, middle, len(written)]),
        figures=figures(ending=2),
    )
    decision = result(plan, answer)
    assert (decision.values, decision.text, decision.stop) == ([" Oslo", " Paris"], " Oslo, Paris", "max_items")
    assert decision.items[1].begin == len(step.tokens) + middle


def test_an_exclusion_that_is_no_choice_is_refused(model: Model) -> None:
    with pytest.raises(ArgumentError, match=r"exclude\[0\]: ' Bern' is none of the 3 choices"):
        next(list_plan(model, exclude=[" Bern"]))


def test_a_thought_comes_before_the_choice_and_is_in_its_prompt(model: Model) -> None:
    plan = choose_plan(model, PROMPT, CITIES, think=Think(marker="!Answer:", max_tokens=20))
    (thinks,) = asked(next(plan), "text")
    assert list(thinks.query.stop_strings) == ["!Answer:"]
    thought = spelled(model, " Far north!Answer:")
    (step,) = asked(plan.send([Answer(tokens=thought, figures=figures(stop=lib.TOKEN_TRIE_STOP_COMPLETE))]), "best")
    assert text(model, step.tokens).endswith("Answer: Far north!Answer:")
    decision = kept(plan, found([2], [-0.5]))[1]
    assert (decision.value, decision.thought) == (" Oslo", " Far north")


def test_a_request_that_cannot_be_is_refused_before_the_model_thinks(model: Model) -> None:
    with pytest.raises(ArgumentError, match="exclude"):
        next(list_plan(model, exclude=[" Bern"], think=Think()))


def test_a_thought_that_fills_the_context_is_an_error(model: Model) -> None:
    plan = choose_plan(model, PROMPT, CITIES, think=Think())
    next(plan)
    with pytest.raises(ContextError, match="before the thought has ended"):
        plan.send([Answer(figures=figures(stop=lib.TOKEN_TRIE_STOP_MAX_TOKENS))])


def test_a_text_says_why_it_ended(model: Model) -> None:
    plan = TextRequest(9, TextOptions(stop=["x", "yes"])).plan(model, PROMPT)
    (step,) = asked(next(plan), "text")
    assert (step.query.max_tokens, step.query.stop_strings) == (9, ["x", "yes"])
    stopped = figures(stop=lib.TOKEN_TRIE_STOP_STRING, stop_string=1)
    written = result(plan, Answer(tokens=spelled(model, " no"), figures=stopped))
    assert (written.text, written.stop, written.stop_string) == (" no", "string", "yes")


# questions


TEAM = Choice("Which team?", ["no", "yes"])
CITY = Choice("Which city?", ["Oslo", "Paris", "Rome"])


def deciding(model: Model, questions: Any, **options: Any) -> Plan[Any]:
    read = DecideOptions.read("decide", {"form": "unlisted", **options})
    return decide_plan(model, prepare_all(questions, read, model.llm), about(model, "I paid twice."))


def test_questions_are_one_list_of_steps_with_priors_by_key(model: Model) -> None:
    plan = deciding(model, {"team": TEAM, "city": CITY})
    steps = asked(next(plan), *["scores"] * 4)
    assert [step.key is not None for step in steps] == [True, False, True, False]
    assert "I paid twice." in text(model, steps[1].tokens)
    assert "I paid twice." not in text(model, steps[0].tokens)
    prior, none = scores([-1.0, -1.0]), scores(EVEN)
    answers = result(plan, prior, scores([-3.0, -1.0]), none, none)
    assert (answers["team"].value, answers["team"].calibration) == ("yes", "contextual")
    assert [*answers["city"].probabilities.values()] == pytest.approx([1 / 3] * 3)


def test_equal_questions_share_the_key_of_their_prior(model: Model) -> None:
    steps = next(deciding(model, {"one": TEAM, "other": TEAM, "third": CITY}))
    assert len({step.key for step in steps if isinstance(step, Ask)} - {None}) == 2


def test_a_raw_question_has_no_prior_and_orders_are_more_steps(model: Model) -> None:
    assert [step.key for step in asked(next(deciding(model, TEAM, calibration=None)), "scores")] == [None]
    assert len(next(deciding(model, CITY, calibration=None, form="listed", orders=3))) == 3


@pytest.mark.parametrize(("step", "name"), [(0, "team"), (1, "team"), (2, "city"), (3, "city")])
def test_an_error_is_named_after_the_question_whose_step_it_is(model: Model, step: int, name: str) -> None:
    plan = deciding(model, {"team": TEAM, "city": CITY})
    next(plan)
    error = ContextError("the context is full")
    error.step = step
    with pytest.raises(ContextError, match=rf"^questions\['{name}'\]: the context is full"):
        plan.throw(error)


def test_a_small_set_as_options_is_scored_whole(model: Model) -> None:
    members = TokenTrie.from_choices(model.llm, CITIES)
    plan = deciding(model, Choice("Where?", members, top=2), calibration=None)
    asked(next(plan), "scores")
    answer = result(plan, scores(EVEN))[None]
    assert (answer.value, len(answer.candidates), answer.gap) == (" Paris", 2, 0.0)


def test_a_large_set_as_options_is_searched_and_what_was_found_is_weighed(model: Model) -> None:
    members = TokenTrie.from_choices(model.llm, [f" {n}" for n in range(300)])
    plan = deciding(model, Choice("Which number?", members, top=1))
    (step,) = asked(next(plan), "best")
    assert step.query.n_best == N_FOUND
    (prior,) = asked(plan.send([found([7, 5], [-1.0, -1.5])]), "scores")
    assert prior.key is not None
    answer = result(plan, scores([-0.5, -5.0]))[None]
    assert (answer.value, answer.gap) == (" 5", math.inf)


# explanations, tools


def test_an_explanation_asks_for_scores_steps_and_branches_and_leaves_the_prompt(model: Model) -> None:
    plan = ExplainRequest.read(None, CITIES, ScoreOptions()).plan(model, PROMPT)
    asked(next(plan), "scores")
    asked(plan.send([scores(EVEN)]), "greedy")
    (step,) = asked(plan.send([Answer(leaf=2, logprob=-0.5, tokens=spelled(model, " Oslo"))]), "scores")
    assert step.query.branches
    tokens, explained = kept(plan, scores([-0.1, -0.2, -0.3]))
    assert (explained.exact.value, explained.greedy.value) == (" Paris", " Oslo")
    assert tokens == model.tokenize(PROMPT)


def test_a_call_is_a_choice_of_the_tool_and_then_its_arguments(model: Model) -> None:
    def weather(city: str, days: int) -> None: ...

    def stop() -> None: ...

    plan = tool_request(read_tools([weather, stop]), RecordOptions()).plan(model, PROMPT)
    (step,) = next(plan)
    assert isinstance(step, Ask)
    assert step.query.trie is not None
    assert step.query.trie.core.n_leaves == 2
    tokens, call = kept(plan, found([1], [-0.5]))
    assert (call.name, call.arguments) == ("stop", {})
    assert text(model, tokens).endswith('{"name":"stop","arguments":{}}')


# parts of a plan


def heard(name: str, n: int, *, recovers: bool = False) -> Plan[str]:
    """Asks n times, and returns what was answered."""
    said = name
    for i in range(n):
        try:
            (answer,) = yield [Ask([i], Query("text"), name)]
            said += f" {answer.leaf}"
        except ContextError as error:
            if not recovers:
                raise ContextError(f"{name}: {error}") from error
            said += " recovered"
    return said


def names_of(steps: Any) -> str:
    return "".join(str(step.key) for step in steps)


def test_parts_side_by_side_get_their_answers_in_order_until_each_is_over() -> None:
    plan = together([heard("a", 2), heard("b", 0), heard("c", 1), heard("d", 3)])
    assert names_of(next(plan)) == "acd"
    assert names_of(plan.send([Answer(leaf=leaf) for leaf in (1, 2, 3)])) == "ad"
    assert names_of(plan.send([Answer(leaf=leaf) for leaf in (4, 5)])) == "d"
    assert result(plan, Answer(leaf=6)) == ["a 1 4", "b", "c 2", "d 3 5 6"]


def thrown(plan: Plan[Any], step: int) -> Any:
    error = ContextError("full")
    error.step = step
    return plan.throw(error)


def test_an_error_is_raised_in_the_part_whose_step_it_is() -> None:
    plan = together([heard("a", 2), together([heard("b", 1), heard("c", 1)])])
    assert names_of(next(plan)) == "abc"
    with pytest.raises(ContextError, match="c: full"):
        thrown(plan, 2)


def test_a_part_that_recovers_goes_on_and_the_others_ask_again() -> None:
    plan = together([heard("a", 1), heard("b", 2, recovers=True)])
    assert names_of(next(plan)) == "ab"
    assert names_of(thrown(plan, 1)) == "ab"
    assert result(plan, Answer(leaf=1), Answer(leaf=2)) == ["a 1", "b recovered 2"]


@pytest.mark.parametrize("wrong", [None, 3, Step([1]), "text", [Step([1]), 3], [[Step([1])]]])
def test_a_plan_that_yields_something_else_than_steps_is_refused(wrong: Any) -> None:
    def plan() -> Plan[None]:
        yield wrong

    with pytest.raises(ArgumentError, match="plan must yield lists of steps, not "):
        Run(plan())


def test_a_plan_may_yield_no_step_and_a_late_answer_is_not_heard() -> None:
    def plan() -> Plan[int]:
        assert (yield []) == []
        (answer,) = yield (Ask([1], Query("text")),)
        return answer.leaf

    run = Run(plan())
    late = run.steps
    assert run.can_go_on
    run.go_on()
    run.give(late, 0, ContextError("late"))
    assert not run.can_go_on
    run.give(run.steps, 0, Answer(leaf=3))
    run.go_on()
    assert (run.is_over, run.result) == (True, 3)
