"""Many draws from small random sets, at a temperature that would lead an unconstrained model anywhere."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from token_trie import StreamHandle, TokenTrie

from bench.models import Model

TEMPERATURE = 2.0
_DECISIONS_A_SET = 10
_MOST_LEAVES, _MOST_TOKENS = 12, 4


def draw(model: Model, n: int, advance: Callable[[], object]) -> dict[str, Any]:
    """Make n decisions in sampled mode; invalid are answers that are no member of their set, or did not end."""
    rng = np.random.default_rng(0)
    counts: Counter[str] = Counter()
    vocabulary = np.setdiff1d(np.arange(model.n_vocab), model.end_tokens())
    prompt = [max(model.llm.token_bos(), 0), *model.tokenize("Answer:")]
    with StreamHandle(model.llm, n_ctx=64) as handle:
        for seed in range(n):
            if seed % _DECISIONS_A_SET == 0:
                leaves = _random_set(rng, vocabulary)
                members = set(leaves)
                handle.set_token_trie(
                    TokenTrie.from_sequences({str(i): leaf for i, leaf in enumerate(leaves)}), "sampled"
                )
                counts["sets"] += 1
            handle.prefill(prompt)
            handle.set_seed(seed)
            before = handle.state.n_passes
            answer = tuple(
                step.token for step in handle.generate(temperature=TEMPERATURE, top_p=float(rng.choice([1.0, 0.9])))
            )
            state = handle.state
            counts["decisions"] += 1
            counts["tokens"] += len(answer)
            counts["forward_passes"] += state.n_passes - before
            counts["invalid"] += answer not in members or state.stop != "complete"
            advance()
    return {"model": model.name, "temperature": TEMPERATURE, **counts}


def _random_set(rng: np.random.Generator, vocabulary: Any) -> list[tuple[int, ...]]:
    """Return sequences that mostly differ in the first token; in every fifth set also later, some inside others."""
    alphabet = rng.choice(vocabulary, size=3 if rng.random() < 0.2 else 200, replace=False)
    count = int(rng.integers(1, _MOST_LEAVES + 1))
    drawn = [tuple(rng.choice(alphabet, size=rng.integers(1, _MOST_TOKENS + 1)).tolist()) for _ in range(count)]
    return list(dict.fromkeys(drawn))
