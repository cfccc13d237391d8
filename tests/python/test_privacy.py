"""No module uses an underscore name of another module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import token_trie

PACKAGE = Path(token_trie.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# The one module that knows what llama-cpp-python keeps to itself.
FACTS = PACKAGE / "native" / "llama_facts.py"
# Public, whatever their names: a module, and methods of named tuples.
PUBLIC = {"_core", "_asdict", "_fields", "_replace"}


def own_names(tree: ast.Module) -> set[str]:
    """Return what the classes of a module call their own: methods, slots, and what is stored in self or a class."""
    own = set()
    for found in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(found):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                own |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
                own |= set(ast.literal_eval(node.value))
    return own


def reaches(file: Path) -> list[str]:
    """Find the lines where a module uses an underscore member that none of its own classes has."""
    tree = ast.parse(file.read_text())
    own = own_names(tree) | PUBLIC
    return [
        f"{file.name}:{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and node.attr not in own
        and ast.unparse(node.value) not in ("self", "cls", "super()")
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: ".".join(file.relative_to(PACKAGE).with_suffix("").parts))
def test_no_module_reaches_for_underscores_of_another(file: Path) -> None:
    assert file == FACTS or reaches(file) == []


def test_a_reach_for_an_underscore_is_found(tmp_path: Path) -> None:
    file = tmp_path / "score.py"
    file.write_text("class Own:\n    def f(self, other, s):\n        self._a = other._a\n        return s._native\n")
    assert reaches(file) == ["score.py:4: s._native"]
