"""``token-trie demo``: agent requests answered with one of 30 actions, by token-trie and by a grammar."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

from rich.markup import escape
from rich.table import Table

from token_trie.cli.options import ModelOptions, command, console
from token_trie.decisions.choose import choose
from token_trie.native.core import llama_cpp
from token_trie.progress import Progress

# Each action with an example request: the whole prompt.
ACTIONS = {
    "add_contact": "Save Maria's new phone number.",
    "add_to_cart": "Put two litres of milk in my shopping cart.",
    "archive_email": "Archive the email from the bank.",
    "book_flight": "I need a plane ticket to Rome.",
    "book_hotel": "Find me a hotel room in Berlin for two nights.",
    "book_table": "We want to eat at the Italian restaurant at eight.",
    "call_contact": "Phone my mother.",
    "cancel_meeting": "Cancel tomorrow's call with Bob.",
    "cancel_order": "I do not want the shoes I ordered any more.",
    "convert_currency": "How much is 20 pounds in yen?",
    "create_meeting": "Schedule a meeting with Ann at noon.",
    "create_note": "Write down: buy stamps.",
    "create_reminder": "Remind me to call the dentist.",
    "delete_email": "Delete that spam email.",
    "delete_file": "Remove the file old.txt.",
    "find_route": "How do I get to the airport?",
    "get_weather": "Is it sunny in Madrid today?",
    "list_meetings": "What is on my calendar today?",
    "open_app": "Open the camera app.",
    "pay_bill": "Pay the electricity bill.",
    "play_music": "Play a song by Queen.",
    "read_email": "Read me the latest email.",
    "read_file": "Show me what is in notes.txt.",
    "search_web": "Who won the match last night?",
    "send_email": "Send Tom an email about the invoice.",
    "send_message": "Text Sam that I am late.",
    "set_alarm": "Wake me at seven.",
    "set_timer": "Tell me when five minutes are over.",
    "track_order": "When will my package arrive?",
    "translate_text": "What is 'thank you' in Spanish?",
}

# Each request with the right action.
REQUESTS = {
    "Wake me up at 6:30 tomorrow.": "set_alarm",
    "Will it rain in Oslo this weekend?": "get_weather",
    "Put on some Miles Davis.": "play_music",
    "Book me a flight to Lisbon on Friday.": "book_flight",
    "How do I say 'good morning' in Japanese?": "translate_text",
    "Where is the parcel I ordered last week?": "track_order",
    "Reserve a table for four at Luigi's tonight.": "book_table",
    "What is 250 dollars in euros?": "convert_currency",
    "Remind me to water the plants on Sunday.": "create_reminder",
    "Set a timer for ten minutes.": "set_timer",
}


def prompt_for(request: str) -> str:
    """Return the prompt for one of the actions."""
    examples = "".join(f"Request: {example}\nAction: {name}\n\n" for name, example in ACTIONS.items())
    return f"{examples}Request: {request}\nAction:"


@command("token-trie demo --model model.gguf")
def demo(model: ModelOptions) -> None:
    """Answer agent requests with one of 30 actions, and compare with a GBNF grammar."""
    llm = model.load(2048)
    names = list(ACTIONS)
    grammar_text = "root ::= " + " | ".join(json.dumps(f" {name}") for name in names)
    grammar = llama_cpp.LlamaGrammar.from_string(grammar_text, verbose=False)

    def by_grammar(prompt: str) -> str:
        answer = llm.create_completion(prompt, max_tokens=24, temperature=0.0, grammar=grammar)
        return str(answer["choices"][0]["text"]).strip()

    ways: dict[str, Callable[[str], str]] = {
        "exact (default)": lambda prompt: choose(llm, prompt, names).value,
        "greedy": lambda prompt: choose(llm, prompt, names, mode="greedy").value,
        "GBNF grammar": by_grammar,
    }
    table = Table(title=f"{len(names)} actions, {llm.n_vocab():,} tokens of vocabulary, prompt evaluated beforehand")
    table.add_column("request")
    for way in ways:
        table.add_column(way)
        table.add_column("ms", justify="right")
    times: dict[str, list[float]] = {way: [] for way in ways}
    n_right = dict.fromkeys(ways, 0)
    with Progress(len(REQUESTS), "requests") as shown:
        for n, (request, expected) in enumerate(REQUESTS.items(), 1):
            prompt = prompt_for(request)
            row = [escape(request)]
            for way, decide in ways.items():
                decide(prompt)
                started = time.perf_counter()
                answer = decide(prompt)
                times[way].append((time.perf_counter() - started) * 1e3)
                n_right[way] += answer == expected
                row += [f"[{'green' if answer == expected else 'yellow'}]{escape(answer)}", f"{times[way][-1]:.1f}"]
            table.add_row(*row)
            shown.move(n)
    console.print(table)
    console.print("Prompts are plain text with an example of each action, without a chat template.", highlight=False)
    medians = {way: statistics.median(column) for way, column in times.items()}
    for way, median in medians.items():
        faster = medians["GBNF grammar"] / median
        much = "" if way == "GBNF grammar" else f", {faster:.1f} times as fast as the grammar"
        console.print(
            f"{way}: what a person would pick {n_right[way]} times in {len(REQUESTS)}; median {median:.1f} ms{much}",
            highlight=False,
        )
