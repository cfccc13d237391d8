"""The harness's own model for transformers, beside the same weights as GGUF: the same figures."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from tiny_gguf import save_both  # noqa: E402
from token_trie import ArgumentError  # noqa: E402
from token_trie.engines.lm_eval import TokenTrieLM, register  # noqa: E402

# Of the harness's own code and what it imports.
pytestmark = pytest.mark.filterwarnings("default")

N_QUESTIONS, N_CTX = 300, 512
WORDS = ["yes", "no", "READ", "SEND_EMAIL", "Paris", "Rome", "Oslo", "think", "answer", "The", "is", "it", "or", "then"]
# With a cache in F32, as the weights are; and one thread, as in conftest.py.
PRECISE = {"type_k": 0, "type_v": 0, "n_threads": 1, "n_threads_batch": 1}
TASK = """
task: tiny_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/{data}.jsonl}}}}
test_split: test
"""
MULTIPLE_CHOICE = """
output_type: multiple_choice
fewshot_split: test
num_fewshot: 5
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
PERPLEXITY = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""
GENERATION = """
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{choices[gold]}}"
generation_kwargs: {until: ["\\n", "no"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with tasks, their data and both models."""
    folder = tmp_path_factory.mktemp("harness")
    save_both(folder / "model")
    rng = random.Random(0)

    def text(least: int, most: int) -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(least, most)))

    with (folder / "questions.jsonl").open("w") as file:
        for _ in range(N_QUESTIONS):
            question = {
                "question": text(3, 12) + "?",
                "choices": [text(1, 4) for _ in range(4)],
                "gold": rng.randrange(4),
            }
            file.write(json.dumps(question) + "\n")
    with (folder / "texts.jsonl").open("w") as file:
        for most in (1, 20, 300, 700):  # the last are longer than the context
            file.write(json.dumps({"text": text(most, most)}) + "\n")
    for name, data, task in (
        ("choices", "questions", MULTIPLE_CHOICE),
        ("text", "texts", PERPLEXITY),
        ("written", "questions", GENERATION),
    ):
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, folder=folder, data=data) + task)
    return folder


@pytest.fixture(scope="module")
def ours(folder: Path) -> TokenTrieLM:
    return TokenTrieLM(folder / "model.gguf", n_ctx=N_CTX, **PRECISE)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(folder / "model"), dtype="float32", device="cpu", batch_size=16)


def evaluate(model: Any, folder: Path, task: str, **options: Any) -> Any:
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(
        model=model, tasks=[task], task_manager=tasks, bootstrap_iters=0, verbosity="ERROR", **options
    )


def responses(results: Any, task: str) -> list[Any]:
    return [sample["filtered_resps"] for sample in sorted(results["samples"][task], key=lambda s: s["doc_id"])]


def test_multiple_choice_after_five_examples_is_what_the_hf_model_gives(
    folder: Path, ours: TokenTrieLM, theirs: Any
) -> None:
    mine, expected = (evaluate(model, folder, "tiny_choices") for model in (ours, theirs))
    got, wanted = (responses(results, "tiny_choices") for results in (mine, expected))
    assert len(got) == N_QUESTIONS
    flat = [[pair for sample in samples for pair in sample] for samples in (got, wanted)]
    assert [pair[0] for pair in flat[0]] == pytest.approx([pair[0] for pair in flat[1]], rel=1e-4)
    assert [pair[1] for pair in flat[0]] == [pair[1] for pair in flat[1]]
    assert mine["results"] == expected["results"]


def test_perplexity_of_texts_longer_than_the_context_is_what_the_hf_model_gives(
    folder: Path, ours: TokenTrieLM, theirs: Any
) -> None:
    mine, expected = (evaluate(model, folder, "tiny_text") for model in (ours, theirs))
    for metric in ("word_perplexity,none", "bits_per_byte,none"):
        figures = [results["results"]["tiny_text"][metric] for results in (mine, expected)]
        assert figures[0] == pytest.approx(figures[1], rel=1e-4)


def test_what_is_written_is_what_the_hf_model_writes(folder: Path, ours: TokenTrieLM, theirs: Any) -> None:
    mine, expected = (evaluate(model, folder, "tiny_written", limit=60) for model in (ours, theirs))
    assert responses(mine, "tiny_written") == responses(expected, "tiny_written")


def pairs(*given: tuple[str, str]) -> list[Any]:
    return [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(given)]


def test_continuations_are_tokenized_as_by_the_hf_model(ours: TokenTrieLM, theirs: Any) -> None:
    asked = pairs(
        ("", "The answer"),
        ("The answer is ", "yes"),
        ("The answer is", " yes"),
        ("The answer is  ", " yes or no"),
        ("The an", "swer is it"),
        ("<s>The answer is", " no"),
        ("Think</think>", "\nyes"),
        ("naïve ", "café 漢字"),
        ("The " * 800, "answer is yes"),
        ("The answer is", " yes"),
    )
    got, expected = ours.loglikelihood(asked), theirs.loglikelihood(asked)
    assert [logprob for logprob, _ in got] == pytest.approx([logprob for logprob, _ in expected], rel=1e-4)
    assert [is_greedy for _, is_greedy in got] == [is_greedy for _, is_greedy in expected]
    for one in asked:
        context, continuation = one.args
        if context:
            assert ours._encode_pair(context, continuation) == theirs._encode_pair(context, continuation)


def test_nothing_asked_is_nothing_answered(ours: TokenTrieLM) -> None:
    assert ours.loglikelihood([]) == ours.loglikelihood_rolling([]) == ours.generate_until([]) == []


def test_a_continuation_without_a_token_is_refused(ours: TokenTrieLM) -> None:
    with pytest.raises(ArgumentError, match="'wer' has no token of its own after 'The ans'"):
        ours.loglikelihood(pairs(("The ans", "wer")))


def written(how: dict[str, Any]) -> list[Any]:
    return [Instance("generate_until", {}, ("The answer is", how), 0)]


def test_draws_are_the_seeds_and_other_ways_of_writing_are_refused(folder: Path, ours: TokenTrieLM) -> None:
    drawn = {"do_sample": True, "temperature": 1.0, "top_p": 0.9, "max_gen_toks": 20, "until": []}
    again = TokenTrieLM(ours._llm, n_ctx=N_CTX)
    other = TokenTrieLM(ours._llm, n_ctx=N_CTX, seed=1)
    first = ours.generate_until(written(drawn))
    assert first == again.generate_until(written(drawn)) != other.generate_until(written(drawn))
    greedy, best = ({**drawn, **how} for how in ({"do_sample": False, "temperature": 0.0}, {"top_k": 1}))
    assert ours.generate_until(written(greedy)) == ours.generate_until(written(best))
    ours.generate_until(written({"do_sample": False, "top_k": 5, "typical_p": 0.5, "max_gen_toks": 2, "until": "x"}))
    for wrong, said in (
        ({"num_beams": 4}, "num_beams is not supported"),
        ({"do_sample": True, "temperature": 1.0, "typical_p": 0.5}, "typical_p is not supported"),
        ({"max_gen_toks": N_CTX}, "leave no room"),
    ):
        with pytest.raises(ArgumentError, match=said):
            ours.generate_until(written({"until": [], **wrong}))
    with pytest.raises(ArgumentError, match="nowhere"):
        TokenTrieLM(folder / "nowhere.gguf")


def test_a_chat_is_the_files_own_template(smollm2: Any, ours: TokenTrieLM) -> None:
    lm = TokenTrieLM(smollm2)
    assert lm.chat_template(True) == smollm2.metadata["tokenizer.chat_template"]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Is it?"}]
    assert lm.apply_chat_template(messages).endswith("Is it?<|im_end|>\n<|im_start|>assistant\n")
    begun = [*messages, {"role": "assistant", "content": "It is"}]
    assert lm.apply_chat_template(begun, add_generation_prompt=False).endswith("<|im_start|>assistant\nIt is")
    assert lm.tokenizer_name.endswith(".gguf")
    with pytest.raises(ArgumentError, match="no chat template"):
        ours.apply_chat_template(messages)


def test_the_command_line_is_the_harness_own(folder: Path) -> None:
    arguments = ",".join(f"{name}={value}" for name, value in PRECISE.items())
    command = [sys.executable, "-m", "token_trie.engines.lm_eval", "--model", "token_trie", "--model_args"]
    command += [f"path={folder}/model.gguf,n_ctx={N_CTX},{arguments}", "--tasks", "tiny_choices", "--limit", "8"]
    done = subprocess.run(
        [*command, "--include_path", str(folder)], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "|tiny_choices|" in done.stdout
    register()  # again does nothing
    assert lm_eval.api.registry.get_model("token_trie") is TokenTrieLM
