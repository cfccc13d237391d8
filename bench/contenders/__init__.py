"""The contenders: each module has one engine, called as its users call it.

A contender is made for a model (what that costs is reported as its setup) and then gives, for a set of answers, the
quantities it can be timed on:

    build   from the text of the set to something that can constrain a sequence, nothing cached
    hit     the same text again, where the engine has a cache
    hash    SHA-256 of that text, to compare the hit with
    fill    the bit mask of the tokens allowed next
    apply   the constraint's effect on the logits or candidates
    mask    fill and apply together
    cold    the same, from empty caches, as a forward pass leaves them
    step    a whole sampling step: mask, llama.cpp's own fill of the candidate array, choice of a token
"""

from collections.abc import Callable
from functools import partial

from bench.contenders.base import Contender, Measure
from bench.contenders.gbnf import Gbnf
from bench.contenders.llguidance import LLGuidance
from bench.contenders.token_trie import GREEDY, SAMPLED, TokenTrie
from bench.contenders.unconstrained import Unconstrained
from bench.contenders.xgrammar import XGrammar
from bench.models import Model

__all__ = ["ALL", "FREE", "GBNF", "OURS", "PEERS", "TOKEN_TRIE", "Contender", "Measure", "engine"]

TOKEN_TRIE, FREE, GBNF = "token-trie", "unconstrained", "GBNF"
OURS: dict[str, Callable[[Model], Contender]] = {
    TOKEN_TRIE: partial(TokenTrie, mode=GREEDY),
    "token-trie (sampled)": partial(TokenTrie, mode=SAMPLED),
}
PEERS: dict[str, Callable[[Model], Contender]] = {
    GBNF: Gbnf,
    "llguidance": partial(LLGuidance, apply="numpy"),
    "llguidance (torch.compile)": partial(LLGuidance, apply="torch"),
    "xgrammar": partial(XGrammar, backend="cpu"),
    "xgrammar (torch.compile)": partial(XGrammar, backend="torch_compile"),
}
ALL = {**OURS, FREE: Unconstrained, **PEERS}


def engine(contender: str) -> str:
    """Return the engine of a contender: its name without the part in parentheses."""
    return contender.partition(" (")[0]
