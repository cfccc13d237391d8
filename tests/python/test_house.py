import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import token_trie

# From the ground up; a floor with two rooms has no stairs between them.
FLOORS = [{"errors", "_core"}, {"native"}, {"sets"}, {"llama"}, {"decisions"}, {"engines", "show"}, {"cli", "serve"}]
PACKAGE = Path(token_trie.__file__).parent
MODULES = {".".join(file.relative_to(PACKAGE).with_suffix("").parts): file for file in PACKAGE.rglob("*.py")}


def imports(module: str) -> Iterator[str]:
    """Modules of the package that one imports, wherever in it, for types alone apart."""
    tree = ast.parse(MODULES[module].read_text())
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "token_trie":
            inside = (node.module or "").partition(".")[2]
            for name in node.names:
                whole = ".".join(filter(None, (inside, name.name)))
                yield whole if whole in MODULES or whole == "_core" else inside
        elif isinstance(node, ast.Import):
            yield from (name.name.partition(".")[2] for name in node.names if name.name.startswith("token_trie."))


def floor(module: str) -> int:
    room = module.partition(".")[0]
    return next(i for i, rooms in enumerate(FLOORS) if room in rooms)


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"__init__"}))
def test_imports_run_downwards(module: str) -> None:
    room = module.partition(".")[0]
    for other in imports(module):
        if other and other.partition(".")[0] != room:
            assert floor(other) < floor(module), f"{module} imports {other}"


def test_no_import_closes_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done and module in MODULES:
            for other in imports(module):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(set(MODULES) - {"__init__"}):
        visit(module, ())


def test_what_climbs_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    climbing = tmp_path / "trie.py"
    climbing.write_text("def late():\n    from token_trie.llama import stream\n")
    monkeypatch.setitem(MODULES, "sets.trie", climbing)
    assert [*imports("sets.trie")] == ["llama.stream"]
    assert floor("llama.stream") > floor("sets.trie")


def test_every_room_has_a_floor_of_its_own() -> None:
    assert all(not below & above for below, above in pairwise(FLOORS))
    assert {module.partition(".")[0] for module in MODULES} - {"__init__"} <= set.union(*FLOORS)


def test_no_file_is_longer_than_400_lines() -> None:
    root = Path(__file__).parents[2]
    folders = ("csrc", "python", "tests", "bench", "examples", "scripts")
    files = [file for folder in folders for file in (root / folder).rglob("*") if file.suffix in (".py", ".cpp", ".h")]
    assert len(files) > 100
    assert [(str(f), n) for f in files if (n := len(f.read_text().splitlines())) > 400] == []
