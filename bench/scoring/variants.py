"""How often each way to weigh whole answers chooses as a person does."""

from collections.abc import Callable
from typing import Any

import numpy as np
from token_trie import Contextual, choose, score
from token_trie.cli.demo import ACTIONS, prompt_for

from bench.models import Model
from bench.scoring.measure import MAIN_SET, Advance, requests
from bench.scoring.rows import VariantsRow

_EMPTY = prompt_for("")

VARIANTS: dict[str, dict[str, Any]] = {
    "exact": {"leaf_end": "longest"},
    'leaf_end="follow"': {"leaf_end": "follow"},
    "branches": {"leaf_end": "longest", "branches": True},
    'normalize="tokens"': {"normalize": "tokens"},
    'normalize="prior"': {"normalize": "prior"},
    "contextual": {"leaf_end": "longest", "calibration": Contextual(_EMPTY)},
    'contextual, leaf_end="follow"': {"leaf_end": "follow", "calibration": Contextual(_EMPTY)},
}


def variants(model: Model, advance: Advance) -> VariantsRow:
    """Weigh the actions for all bundled requests in every way."""
    llm: Any = model.llm
    names, cases = list(ACTIONS), requests()
    ways: dict[str, Callable[[str], int]] = {
        "greedy": lambda prompt: choose(llm, prompt, names, mode="greedy").index,
        **{
            way: lambda prompt, options=options: int(score(llm, prompt, names, **options).argmax())  # type: ignore[misc]
            for way, options in VARIANTS.items()
        },
    }
    right: dict[str, list[bool]] = {way: [] for way in ways}
    for request in cases:
        for way, pick in ways.items():
            right[way].append(names[pick(prompt_for(request["text"]))] == request["action"])
        advance()
    return VariantsRow(
        model=model.name,
        set=MAIN_SET,
        requests=len(cases),
        right={way: float(np.mean(those)) for way, those in right.items()},
    )
