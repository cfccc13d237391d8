"""How far a member's score depends on other things than its text: the rest of the set, the calls before."""

import random

import numpy as np
from token_trie import TokenTrie
from token_trie.cli.demo import ACTIONS, prompt_for
from token_trie.llama.query import Query
from token_trie.sets.prompt import tokenize_prompt

from bench.models import Model
from bench.scoring.contenders import opened
from bench.scoring.measure import Advance, requests
from bench.scoring.rows import IndependenceRow

SIZES = (10, 20, 30)
N_INDEPENDENCE_REQUESTS = 16


def independence(model: Model, n_ctx: int, advance: Advance) -> IndependenceRow:
    """Score the same members in sets of 10, 20 and 30, and behind a prompt evaluated at once and in two parts."""
    texts = requests()[:N_INDEPENDENCE_REQUESTS]
    names = list(ACTIONS)
    random.Random(1).shuffle(names)
    first_prompt = prompt_for(texts[0]["text"])
    tries = {n: TokenTrie.from_choices(model.llm, names[:n], prompt=first_prompt) for n in SIZES}
    among, behind = [], []
    with opened(model.llm, n_ctx) as stream, opened(model.llm, n_ctx) as fresh:
        for request in texts:
            tokens = tokenize_prompt(model.llm, prompt_for(request["text"]))
            stream.prefill(tokens)  # all but the last line is evaluated already
            scores = {
                n: dict(zip(trie.names, stream.answer(Query("scores", trie)).logprobs, strict=True))
                for n, trie in tries.items()
            }
            for n, of in scores.items():
                among += [abs(score - scores[m][name]) for m in SIZES if m > n for name, score in of.items()]
            fresh.prefill(tokens[:1])
            fresh.prefill(tokens)
            largest = tries[SIZES[-1]]
            behind += np.abs(
                fresh.answer(Query("scores", largest)).logprobs - [scores[SIZES[-1]][n] for n in largest.names]
            ).tolist()
            advance()
    return IndependenceRow(
        model=model.name,
        sizes=list(SIZES),
        prompts=len(texts),
        among_median=float(np.median(among)),
        among_most=float(np.max(among)),
        among_changed=float(np.mean(np.array(among) > 0)),
        behind_median=float(np.median(behind)),
        behind_most=float(np.max(behind)),
        behind_changed=float(np.mean(np.array(behind) > 0)),
    )
