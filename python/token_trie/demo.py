"""Agent requests answered with one of 30 actions, by token-trie and by a GBNF grammar, side by side."""

from __future__ import annotations

import json
import statistics
import time

from llama_cpp.llama_grammar import LlamaGrammar
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from token_trie._native import Llama
from token_trie.choose import choose

ACTIONS = {
    "ADD_CONTACT": "save a person's phone number or address",
    "ADD_TO_CART": "put a product into the shopping cart",
    "ARCHIVE_EMAIL": "archive an email",
    "BOOK_FLIGHT": "book a flight",
    "BOOK_HOTEL": "book a hotel room",
    "BOOK_TABLE": "reserve a table in a restaurant",
    "CALL_CONTACT": "phone a person",
    "CANCEL_MEETING": "cancel a meeting",
    "CANCEL_ORDER": "cancel an order",
    "CONVERT_CURRENCY": "convert an amount of money",
    "CREATE_MEETING": "schedule a meeting",
    "CREATE_NOTE": "write a note",
    "CREATE_REMINDER": "remind the user later",
    "DELETE_EMAIL": "delete an email",
    "DELETE_FILE": "delete a file",
    "FIND_ROUTE": "find the way to a place",
    "GET_WEATHER": "look up the weather forecast",
    "LIST_MEETINGS": "show the calendar",
    "OPEN_APP": "open an app",
    "PAY_BILL": "pay a bill",
    "PLAY_MUSIC": "play a song or artist",
    "READ_EMAIL": "read an email",
    "READ_FILE": "read a file",
    "SEARCH_WEB": "search the web",
    "SEND_EMAIL": "send an email",
    "SEND_MESSAGE": "send a text message",
    "SET_ALARM": "set an alarm",
    "SET_TIMER": "set a timer",
    "TRACK_ORDER": "find out where an order is",
    "TRANSLATE_TEXT": "translate text",
}

REQUESTS = [
    "Wake me up at 6:30 tomorrow.",
    "Will it rain in Oslo this weekend?",
    "Put on some Miles Davis.",
    "Book me a flight to Lisbon on Friday.",
    "How do I say 'good morning' in Japanese?",
    "Where is the parcel I ordered last week?",
    "Reserve a table for four at Luigi's tonight.",
    "What is 250 dollars in euros?",
    "Remind me to water the plants on Sunday.",
    "Set a timer for ten minutes.",
]

_EXAMPLES = [
    ("Text Sam that I'm running late.", "SEND_MESSAGE"),
    ("What's on my calendar today?", "LIST_MEETINGS"),
    ("How do I get to the airport from here?", "FIND_ROUTE"),
]


def prompt_for(request: str) -> str:
    """Write the prompt that asks for one of the actions."""
    actions = "\n".join(f"{name}: {use}" for name, use in ACTIONS.items())
    examples = "\n".join(f"Request: {text}\nAction: {name}\n" for text, name in _EXAMPLES)
    return f"Actions:\n{actions}\n\n{examples}\nRequest: {request}\nAction:"


def run(llm: Llama, console: Console) -> None:
    """Print the table."""
    names = list(ACTIONS)
    grammar_text = "root ::= " + " | ".join(json.dumps(f" {name}") for name in names)
    grammar = LlamaGrammar.from_string(grammar_text, verbose=False)
    table = Table(title=f"{len(names)} actions, {llm.n_vocab():,} tokens of vocabulary, prompt evaluated beforehand")
    for header in ("request", "token-trie", "ms", "passes", "GBNF grammar", "ms"):
        table.add_column(header, justify="right" if header in ("ms", "passes") else "left")
    times: list[tuple[float, float]] = []
    choose(llm, prompt_for(""), names)
    for request in track(REQUESTS, "deciding", console=console, transient=True):
        prompt = prompt_for(request)
        llm.create_completion(prompt, max_tokens=1, temperature=0.0)
        started = time.perf_counter()
        decision = choose(llm, prompt, names)
        trie_ms = (time.perf_counter() - started) * 1e3
        started = time.perf_counter()
        answer = llm.create_completion(prompt, max_tokens=24, temperature=0.0, grammar=grammar)
        gbnf_ms = (time.perf_counter() - started) * 1e3
        times.append((trie_ms, gbnf_ms))
        table.add_row(
            escape(request),
            f"[bold green]{escape(decision.value)}",
            f"{trie_ms:.1f}",
            str(decision.stats.n_passes),
            escape(answer["choices"][0]["text"].strip()),
            f"{gbnf_ms:.1f}",
        )
    console.print(table)
    trie_ms, gbnf_ms = (statistics.median(column) for column in zip(*times, strict=True))
    console.print(
        f"median: token-trie {trie_ms:.1f} ms, grammar {gbnf_ms:.1f} ms: {gbnf_ms / trie_ms:.1f} times as fast"
    )
