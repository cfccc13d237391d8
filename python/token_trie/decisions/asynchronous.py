"""Decisions under asyncio. A task that is cancelled, or timed out, ends its decision before it goes on."""

from __future__ import annotations

from token_trie.decisions.choose import choose
from token_trie.decisions.lists import choose_list
from token_trie.decisions.questions.decide import decide
from token_trie.decisions.records.fill import fill
from token_trie.decisions.records.tools import choose_tool
from token_trie.decisions.score import score
from token_trie.llama.asynchronous import asynchronous
from token_trie.llama.shared_batch import cancel

achoose = asynchronous(choose, cancel)
achoose_list = asynchronous(choose_list, cancel)
achoose_tool = asynchronous(choose_tool, cancel)
adecide = asynchronous(decide, cancel)
afill = asynchronous(fill, cancel)
ascore = asynchronous(score, cancel)
