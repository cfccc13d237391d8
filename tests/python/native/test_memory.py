from __future__ import annotations

from token_trie.native.lifetime import LruCache


def test_what_is_known_is_not_made_again() -> None:
    memory: LruCache[object] = LruCache(4, 100)
    first = memory.get("a", 1, object)
    assert memory.get("a", 1, object) is first
    assert memory.get("b", 1, object) is not first


def test_what_was_used_last_is_kept() -> None:
    memory: LruCache[object] = LruCache(2, 100)
    a, b = memory.get("a", 1, object), memory.get("b", 1, object)
    memory.get("a", 1, object)
    memory.get("c", 1, object)
    assert memory.get("a", 1, object) is a
    assert memory.get("b", 1, object) is not b


def test_what_is_kept_weighs_no_more_than_allowed_the_newest_apart() -> None:
    memory: LruCache[object] = LruCache(10, 100)
    light = memory.get("light", 60, object)
    heavy = memory.get("heavy", 1000, object)
    assert memory.get("heavy", 1000, object) is heavy
    assert memory.get("light", 60, object) is not light
    other = memory.get("other", 40, object)
    assert memory.get("light", 60, object) is not light
    assert memory.get("other", 40, object) is other
