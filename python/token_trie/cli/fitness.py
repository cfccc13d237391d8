"""What `token-trie doctor` finds about a model: its file, and how it answers questions whose answers are known."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

from token_trie.cli.findings import Finding, found
from token_trie.decisions.questions.decide import decide
from token_trie.decisions.questions.labels import LETTERS, single_tokens
from token_trie.decisions.questions.options import FormName
from token_trie.decisions.questions.question import Choice
from token_trie.decisions.questions.trained import trained_of
from token_trie.errors import TokenTrieError
from token_trie.llama.batch import can_share
from token_trie.native.core import Llama, llama_cpp, vocab_of
from token_trie.native.llama_facts import model_of
from token_trie.sets.chat_form import has_chat_template
from token_trie.sets.prompt import tokenize_prompt

_TEMPLATE = "tokenizer.chat_template"
_MANY_TOKENS = 2048
_N_TIMED = 256
_SLOW_S = 2.0
_ENOUGH = 0.75
_BY = {"unlisted": "by what options mean", "letters": "by letters"}
# A state, a question, and options of which the first is right.
_KNOWN = [
    ("My card was charged twice for one order.", "What is it about?", "A payment", "A password", "A delivery"),
    ("The film was a waste of time. I want my money back.", "What did the writer think?", "It was bad", "It was good"),
    ("Der Zug kommt heute eine Stunde später.", "Which language is this?", "German", "English", "Spanish"),
    ("The oven is burning! Call the firefighters!", "What happened?", "A fire", "A flood", "A theft"),
    ("It has been raining all day.", "What is the weather like?", "It is wet", "It is dry"),
    ("Set an alarm for seven tomorrow.", "What is to be done?", "Set an alarm", "Play some music", "Send a message"),
    (
        "I cannot log in: it says that my password is wrong.",
        "What is it about?",
        "A password",
        "A payment",
        "A delivery",
    ),
    ("The parcel has not arrived yet.", "What is it about?", "A delivery", "A password", "A payment"),
]


def examine_model(llm: Llama) -> Iterator[Finding]:
    """Yield what there is to say of a model; the questions come last, and only where it can answer any."""
    findings = [_kind(llm), _sequences(llm), _chat(llm), _ends(llm), _beginning(llm), _labels(llm), _context(llm)]
    is_trained, decisions = _training(llm)
    yield from [*findings, decisions]
    if any(finding.verdict == "poor" for finding in findings):
        return
    try:
        yield from _answers(llm, is_trained)
    except TokenTrieError as error:
        yield found("questions", "not answered", poor=str(error))


def _kind(llm: Llama) -> Finding:
    model, buffer = model_of(llm).model, ctypes.create_string_buffer(256)
    llama_cpp.llama_model_desc(model, buffer, len(buffer))
    told = f"{buffer.value.decode(errors='replace')}, {llama_cpp.llama_model_n_params(model):,} parameters"
    if llm.metadata.get(f"{_architecture(llm)}.attention.causal") == "false":
        return found("model", told, poor="it makes embeddings, and writes nothing: take a model that generates text")
    if not llama_cpp.llama_model_has_decoder(model) or llama_cpp.llama_model_has_encoder(model):
        return found("model", told, poor="it has an encoder: take a model that only generates text")
    if llama_cpp.llama_model_is_diffusion(model):
        return found("model", told, poor="it writes all tokens at once: take one that writes them one after the other")
    return found("model", told)


def _architecture(llm: Llama) -> str:
    return str(llm.metadata.get("general.architecture"))


def _sequences(llm: Llama) -> Finding:
    if can_share(llm):
        return found("cache", "prompts share what they begin with, and are answered together")
    return found(
        "cache",
        "recurrent or hybrid",
        fair="prompts are answered one after the other, and each answer is read by itself: a transformer is faster",
    )


def _chat(llm: Llama) -> Finding:
    if not has_chat_template(llm):
        return found(
            "chat template",
            "none",
            fair="give prompts as text: messages get Llama 2's template, unless Llama(…, chat_format=…) says another",
        )
    names = [key.removeprefix(_TEMPLATE).lstrip(".") for key in llm.metadata if key.startswith(_TEMPLATE)]
    told = f"{llm.chat_format}; of the file: {', '.join(name or 'default' for name in names) or 'none'}"
    try:
        tokens = tokenize_prompt(llm, [{"role": "user", "content": "Hello"}])
    except TokenTrieError as error:
        return found("chat template", told, fair=f"messages are refused, so prompts have to be text: {error}")
    if tokens[:2] == [llm.token_bos()] * 2:
        return found("chat template", told, fair="it puts the token of the beginning there twice: mend the template")
    return found("chat template", told)


def _ends(llm: Llama) -> Finding:
    tokens = vocab_of(llm).end_of_generation()
    if not tokens:
        change = "nothing ends what it writes: convert it again, with tokenizer.ggml.eos_token_id"
        return found("end tokens", "none", poor=change)
    told = ", ".join(_shown(llm, token) for token in tokens)
    end = _end_of_turn(llm)
    if end is not None and end not in tokens:
        change = f"turns end with {_shown(llm, end)}, which is none of them: set tokenizer.ggml.eot_token_id to {end}"
        return found("end tokens", told, fair=change)
    return found("end tokens", told)


def _end_of_turn(llm: Llama) -> int | None:
    """Return the control token that the file's template ends an answer with; None if it is not known."""
    template = llm.metadata.get(_TEMPLATE)
    if template is None:
        return None
    model = model_of(llm)
    eos, bos = (model.token_get_text(token) if token >= 0 else "" for token in (llm.token_eos(), llm.token_bos()))
    turns: list[Any] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "answer_here"}]
    try:
        formatter = llama_cpp.llama_chat_format.Jinja2ChatFormatter
        text = formatter(template, eos, bos, add_generation_prompt=False)(messages=turns).prompt
    except Exception:  # of whatever the template calls
        return None
    behind = text.partition("answer_here")[2].strip()
    tokens = llm.tokenize(behind.encode(), add_bos=False, special=True) if behind else []
    return int(tokens[0]) if tokens and vocab_of(llm).is_control(tokens[0]) else None


def _shown(llm: Llama, token: int) -> str:
    return f"{llm.detokenize([token], special=True).decode(errors='replace')} ({token})"


def _beginning(llm: Llama) -> Finding:
    if not model_of(llm).add_bos_token():
        return found("beginning", "prompts begin with no token of their own")
    if llm.token_bos() < 0:
        return found("beginning", "a token that the file does not name", poor="set tokenizer.ggml.bos_token_id")
    return found("beginning", f"prompts begin with {_shown(llm, llm.token_bos())}")


def _labels(llm: Llama) -> Finding:
    n = len(single_tokens(llm, LETTERS).texts)
    told = f"{n} of {len(LETTERS)} letters are a token of their own"
    return found("labels", told, fair=None if n == len(LETTERS) else "leave form='letters' alone")


def _context(llm: Llama) -> Finding:
    n = llama_cpp.llama_model_n_ctx_train(model_of(llm).model)
    return found("context", f"trained with {n:,} tokens", fair="long states do not fit" if n < _MANY_TOKENS else None)


def _training(llm: Llama) -> tuple[bool, Finding]:
    """Return whether questions are put as the file says, and what there is to say of that."""
    try:
        trained = trained_of(llm)
    except TokenTrieError as error:
        return False, found("decisions", "the file says that it was trained for them", fair=str(error))
    if trained is None:
        return False, found("decisions", "not trained for them: questions are put by a form, unlisted by default")
    return True, found("decisions", f"trained for them, as {trained.kind}: questions are put as the file says")


def _answers(llm: Llama, is_trained: bool) -> Iterator[Finding]:
    forms: list[FormName | None] = [None] if is_trained else ["unlisted", "letters"]
    n, results = len(_KNOWN), [_ask(llm, form) for form in forms]
    told = [
        f"{n_right} of {n} right{'' if form is None else f' {_BY[form]}'}, mass {mass:.2g}"
        for form, (n_right, mass) in zip(forms, results, strict=True)
    ]
    (n_right, _), *others = results
    change = None
    if n_right < _ENOUGH * n:
        is_better = any(n_other >= _ENOUGH * n for n_other, _ in others)
        change = "--form letters does better" if is_better else "it guesses: take a larger model, or another form"
    yield found("questions", "; ".join(told), fair=change)
    yield _speed(llm, forms[0])


def _ask(llm: Llama, form: FormName | None) -> tuple[int, float]:
    """Return how many of the known questions are answered right, and the median mass."""
    n_right, masses = 0, []
    for i, (state, question, *options) in enumerate(_KNOWN):
        turn = i % len(options)
        answer = decide(llm, state, Choice(question, options[turn:] + options[:turn]), form=form)
        n_right += answer.value == options[0]
        masses.append(answer.mass or 0.0)
    return n_right, median(masses)


def _speed(llm: Llama, form: FormName | None) -> Finding:
    """Time a decision about a state that was not seen before, of a question that was."""
    room = min(_N_TIMED, llama_cpp.llama_model_n_ctx_train(model_of(llm).model) // 2, llm.n_ctx() // 2)
    said = (f"Ticket {i}: {_KNOWN[i % len(_KNOWN)][0]}\n" for i in range(1, room))
    state = ""
    while len(llm.tokenize(state.encode(), add_bos=False)) < room:
        state += next(said)
    _, question, *options = _KNOWN[0]
    begun = perf_counter()
    answer = decide(llm, state, Choice(question, options), form=form)
    seconds = perf_counter() - begun
    told = f"{1000 * seconds:,.0f} ms for a question about {answer.stats.n_prompt:,} tokens that were not read before"
    slow = "a smaller model or quantization, or a GPU" if seconds > _SLOW_S else None
    return found("speed", told, fair=slow)
