"""Take records out of texts with a pydantic model: pip install 'token-trie[demo,records]'."""

from typing import Annotated, Literal

import llama_cpp
import token_trie
from pydantic import BaseModel, Field


class Order(BaseModel):
    """An order in a mail."""

    product: Annotated[str, Field(max_length=40)]
    colour: Literal["red", "green", "blue"] | None = None
    quantity: Annotated[int, Field(ge=1, le=99)]
    express: bool


llm = llama_cpp.Llama(token_trie.demo_model(), n_ctx=2048, verbose=False)  # or any GGUF file

shots = """Mail: Two blue mugs, please, it is not urgent.
Order: {"product": "mugs", "colour": "blue", "quantity": 2, "express": false}

Mail: Send a large table, as fast as you can!
Order: {"product": "table", "colour": null, "quantity": 1, "express": true}

"""
mails = [
    "Please send me 3 red scarves by express.",
    "I would like one green kettle. Take your time.",
]
prompts = [f"{shots}Mail: {mail}\nOrder:" for mail in mails]
for mail, record in zip(mails, token_trie.fill_many(llm, prompts, Order), strict=True):
    print(mail)
    print("  ", record.value)  # an Order: valid, whatever the model is
    print("  ", round(min(record.probabilities.values()), 2))  # the least sure of its decisions
