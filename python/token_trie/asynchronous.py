"""Decisions under asyncio. If a task is cancelled or times out, its decision has ended before the task continues."""

from __future__ import annotations

from token_trie.decisions.choose import choose, score
from token_trie.decisions.lists import choose_list
from token_trie.decisions.many import choose_many
from token_trie.llama.asynchronous import Asynchronous, asynchronous_iterator
from token_trie.llama.batch import cancel
from token_trie.questions.decide import decide, decide_many
from token_trie.records.fill import fill, fill_many
from token_trie.records.tools import choose_tool, choose_tool_many
from token_trie.show.explain import explain

_form_of = Asynchronous(cancel)

achoose = _form_of(choose)
achoose_list = _form_of(choose_list)
achoose_many = asynchronous_iterator(choose_many)
achoose_tool = _form_of(choose_tool)
achoose_tool_many = asynchronous_iterator(choose_tool_many)
adecide = _form_of(decide)
adecide_many = asynchronous_iterator(decide_many)
aexplain = _form_of(explain)
afill = _form_of(fill)
afill_many = asynchronous_iterator(fill_many)
ascore = _form_of(score)
