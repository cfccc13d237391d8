"""Find an item of a catalogue of 40,000, among those in stock: pip install 'token-trie[demo]'."""

import itertools
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
import token_trie
from token_trie import Contextual, TokenTrie

llm = llama_cpp.Llama(token_trie.demo_model(), n_ctx=1024, verbose=False)  # or any GGUF file

colours = ["Red", "Blue", "Green", "Black", "White", "Brown", "Grey", "Yellow", "Pink", "Violet"]
materials = ["cotton", "wool", "leather", "linen", "silk", "denim", "velvet", "canvas", "nylon", "cashmere"]
things = "shirt scarf belt jacket hat bag skirt coat dress glove vest sock apron tie cap purse robe shawl sweater boot"
makers = [f"{first}{last}" for first in ("Nord", "Oslo", "Lund", "Berg", "Havn") for last in ("", " & Co", "son", "by")]
parts = itertools.product(colours, materials, things.split(), makers)
titles = [f"{colour} {material} {thing} by {maker}" for colour, material, thing, maker in parts]

# Once: the set is tokenized and written to a file, which any number of processes then open in milliseconds. The prompt
# below ends with a colon, so a title begins with a space. When the table changes, write the file again: whoever has it
# open keeps what it has.
file = Path(tempfile.gettempdir()) / "titles.trie"
TokenTrie.from_choices(llm, titles, leading_space=True).save(file)

items = TokenTrie.open(file)
sold_out = np.array([leaf.name.endswith("by Berg") for leaf in items])  # in the order of the set's members
in_stock = items.filtered(~sold_out)  # nothing is built again: a filter for each request is cheap

ask = "Mail: please send me {} again.\nItem:"
mail = ask.format("the green wool scarf, the one that Berg makes,")
for name, some in (("all", items), ("in stock", in_stock)):
    # Contextual weighs the best titles against what the prompt gives them without the mail.
    found = token_trie.choose(llm, mail, some, n_best=3, calibration=Contextual(ask.format("it")))
    print(f"{name}: {len(some):,} items")
    for candidate in found.candidates:
        print("  ", candidate.text.strip())
