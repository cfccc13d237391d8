"""Classify the rows of a pandas table: pip install 'token-trie[demo]' pandas."""

import llama_cpp
import pandas as pd
import token_trie

llm = llama_cpp.Llama(token_trie.demo_model(), n_ctx=2048, verbose=False)  # or any GGUF file

tickets = pd.DataFrame(
    {
        "text": [
            "I was charged twice this month.",
            "The app crashes when I open it.",
            "Please send the invoice again.",
            "The screen stays black after the update.",
            "My card was declined, but you took the money.",
            "I cannot log in since yesterday.",
            "What does the yearly plan cost?",
            "The search finds nothing any more.",
        ]
    }
)
team = token_trie.Choice(
    "Which team should handle this?",
    {"billing": "payments, charges and invoices", "technical": "the app does not work"},
)

# The answers come in the order of the rows, and the rows are evaluated in batches. A table of millions can be read in
# pieces: the rows may be any iterable. "batch" takes out what the model says of every row, whatever its text.
answers = list(token_trie.decide_many(llm, tickets["text"], team, calibration="batch"))
tickets["team"] = [answer.value for answer in answers]
tickets["probability"] = [round(answer.probabilities[answer.value], 3) for answer in answers]

# The rows that a person should look at first.
print(tickets.sort_values("probability").to_string(index=False))
