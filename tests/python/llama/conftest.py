from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from token_trie import StreamHandle, TokenTrie
from tokenized_choices import ACTIONS, PROMPT


@pytest.fixture
def stream(smollm2: Any) -> Iterator[StreamHandle]:
    with StreamHandle(smollm2, n_ctx=256) as handle:
        yield handle


@pytest.fixture
def actions(smollm2: Any) -> TokenTrie:
    return TokenTrie.from_choices(smollm2, ACTIONS, prompt=PROMPT)
