"""Whether a value can be written by the node of a schema, in any order of its properties."""

import json
from typing import Any

from token_trie.records.gbnf import Expression, Matcher
from token_trie.records.nodes import Array, ChoiceNode, Map, Node, Object, Slot, String, Union, common, distinct


def admits(node: Node, value: Any) -> bool:
    """Return whether a record of a node can be a value."""
    if isinstance(node, ChoiceNode):
        return bool(common([value], node.values))
    if isinstance(node, Union):
        return any(admits(option, value) for option in node.options)
    if isinstance(node, String):
        return isinstance(value, str) and _is_text_of(node, value)
    if isinstance(node, Slot):
        texts = [json.dumps(value, ensure_ascii=False, separators=(",", ":"))]
        if isinstance(value, float) and value.is_integer():
            texts.append(str(int(value)))
        return any(_matches(node.value, text) for text in texts)
    if isinstance(node, Object):
        fields = {field.name: field for field in node.fields}
        return (
            isinstance(value, dict)
            and all(field.name in value for field in node.fields if field.is_required)
            and all(name in fields and admits(fields[name].node, part) for name, part in value.items())
        )
    if isinstance(node, Map):
        return (
            isinstance(value, dict)
            and node.min_items <= len(value) <= node.max_items
            and all(admits(node.key, name) and admits(node.node, part) for name, part in value.items())
        )
    return isinstance(value, list) and _is_list_of(node, value)


def _is_text_of(node: String, text: str) -> bool:
    most = len(text) if node.max_length is None else node.max_length
    return node.min_length <= len(text) <= most and _matches(node.content, json.dumps(text, ensure_ascii=False)[1:-1])


def _is_list_of(node: Array, value: list[Any]) -> bool:
    if not node.min_items <= len(value) <= node.max_items or (node.unique and len([*distinct(value)]) < len(value)):
        return False
    return all(admits(node.kind(i), part) for i, part in enumerate(value))


def _matches(content: Expression, text: str) -> bool:
    try:
        return bool(Matcher(content).ends(text) >> len(text) & 1)
    except ValueError:
        return False
