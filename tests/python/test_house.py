import ast
import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import token_trie

# From the ground up; a floor with two rooms has no stairs between them. "__init__" has the public names.
FLOORS = [
    {"errors", "arrays", "_core"},
    {"native", "progress"},
    {"sets"},
    {"llama"},
    {"plan"},
    {"decisions"},
    {"records", "questions"},
    {"trust"},
    {"show"},
    {"handle", "asynchronous"},
    {"engines"},
    {"__init__"},
    {"serve"},
    {"cli"},
]
PACKAGE = Path(token_trie.__file__).parent
MODULES = {
    ".".join(file.relative_to(PACKAGE).with_suffix("").parts): file
    for file in PACKAGE.rglob("*.py")
    if file.name != "_abi.py"  # generated
}


def module_of(name: str) -> str:
    """Return the module of a dotted name in the package, `llama.stream` of `llama.stream.StreamHandle`."""
    while name:
        for module in (name, f"{name}.__init__"):
            if module in MODULES or module == "_core":
                return module
        name = name.rpartition(".")[0]
    return "__init__"


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(file.read_text()))]


def imports(module: str) -> Iterator[str]:
    """Find the modules of the package that one imports, wherever in it, for types alone too."""
    for node in nodes_of(MODULES[module]):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: an import from {'.' * node.level} says not which room that is"
            package, _, inside = (node.module or "").partition(".")
            if package == "token_trie":
                yield from (module_of(".".join(filter(None, (inside, name.name)))) for name in node.names)
        elif isinstance(node, ast.Import):
            names = (name.name.partition(".") for name in node.names)
            yield from (module_of(inside) for package, _, inside in names if package == "token_trie")


def room(module: str) -> str:
    return module.partition(".")[0]


def floor(module: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if room(module) in rooms)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_run_downwards(module: str) -> None:
    for other in imports(module):
        if room(other) != room(module):
            assert floor(other) < floor(module), f"{module} imports {other}"


def test_no_import_closes_a_circle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done and module in MODULES:
            for other in imports(module):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


NATIVE = ["trie", "cursor", "llama", "sampler", "context", "decode", "search", "stream", "batch", "abi", "bindings"]


def test_includes_run_downwards() -> None:
    root = Path(__file__).parents[2] / "csrc"
    files = [file for file in root.rglob("*") if file.suffix in (".h", ".cpp")]
    assert {file.parent.name for file in files} == {*NATIVE}
    for file in files:
        own = NATIVE.index(file.parent.name)
        for room in re.findall(r'#include "(\w+)/', file.read_text()):
            assert room == file.parent.name or NATIVE.index(room) < own, f"{file.relative_to(root)} includes {room}/"


def test_sets_and_positions_in_them_need_no_llama_cpp() -> None:
    root = Path(__file__).parents[2] / "csrc"
    files = [file for room in ("trie", "cursor") for file in (root / room).iterdir()]
    assert [file.name for file in files if re.search(r"#include <(llama|ggml)", file.read_text())] == []


@pytest.mark.parametrize(
    "code",
    [
        "def late():\n    from token_trie.llama import stream\n",
        "if TYPE_CHECKING:\n    from token_trie.llama.stream import StreamHandle\n",
        "import token_trie.llama.stream\n",
    ],
)
def test_what_climbs_is_found(code: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    climbing = tmp_path / "trie.py"
    climbing.write_text(code)
    monkeypatch.setitem(MODULES, "sets.trie", climbing)
    assert [*imports("sets.trie")] == ["llama.stream"]
    assert floor("llama.stream") > floor("sets.trie")


def is_any(annotation: ast.expr) -> bool:
    """Tell whether an annotation says nothing: ``Any``, or ``Any | None``."""
    if isinstance(annotation, ast.BinOp):
        return is_any(annotation.left) or is_any(annotation.right)
    return isinstance(annotation, ast.Name) and annotation.id == "Any"


def attributes(module: str) -> tuple[set[str], set[str]]:
    """Return the attributes that a module's classes have, and those of them that are annotated with Any."""
    every, untyped = set(), set()
    classes = [node for node in nodes_of(MODULES[module]) if isinstance(node, ast.ClassDef)]
    for node in (node for found in classes for node in ast.walk(found)):
        if isinstance(node, ast.AnnAssign):
            name = node.target.attr if isinstance(node.target, ast.Attribute) else ast.unparse(node.target)
            every.add(name)
            untyped |= {name} if is_any(node.annotation) else set()
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            every.add(node.attr)
    return every, untyped


def ties() -> Iterator[tuple[str, str, str]]:
    """Find the modules that set an attribute of another module's class annotated with Any; the module, and its name."""
    found = {module: attributes(module) for module in MODULES}
    for module in MODULES:
        nodes = [node for node in nodes_of(MODULES[module]) if isinstance(node, ast.Attribute)]
        stored = {node.attr for node in nodes if isinstance(node.ctx, ast.Store)} - found[module][0]
        yield from ((module, other, name) for name in stored for other in MODULES if name in found[other][1])


def test_what_holds_a_thing_of_another_module_says_of_which_type() -> None:
    assert [*ties()] == []


def test_a_tie_without_type_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    below, above = tmp_path / "lease.py", tmp_path / "stream.py"
    below.write_text("class Lease:\n    def __init__(self) -> None:\n        self.holder: Any | None = None\n")
    above.write_text("def hold(lease: Lease) -> None:\n    lease.holder = Stream()\n")
    monkeypatch.setattr("test_house.MODULES", {"native.lease": below, "llama.stream": above})
    assert [*ties()] == [("llama.stream", "native.lease", "holder")]


def test_every_room_has_a_floor_of_its_own() -> None:
    assert all(not below & above for below, above in pairwise(FLOORS))
    assert {room(module) for module in MODULES} <= set.union(*FLOORS)


# Shapes of requests are named as their formats name them, and the processors of two engines as both call theirs.
NAMED_ELSEWHERE = {"serve.shapes", "engines.transformers"}


def type_named(node: ast.AST) -> str | None:
    """Return the name of the type that a node defines: a class, or an alias with a public name."""
    if isinstance(node, ast.ClassDef):
        return node.name
    is_alias = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
    name = ast.unparse(node.target) if is_alias and isinstance(node, ast.AnnAssign) else "_"
    return None if name.startswith("_") else name


def test_a_name_of_a_type_means_one_thing() -> None:
    names: dict[str, list[str]] = {}
    for module in sorted(MODULES.keys() - NAMED_ELSEWHERE):
        for node in nodes_of(MODULES[module]):
            if (name := type_named(node)) is not None:
                names.setdefault(name, []).append(module)
    assert {name: modules for name, modules in names.items() if len(modules) > 1} == {}


UNCLEAR = re.compile(r'(?:^|\s)(#|//|/\*+|""")[!:<]*\s*(what|who|those|of|its|being)\b', re.IGNORECASE)


def unclear(text: str) -> Iterator[tuple[int, str]]:
    """Find the lines where a docstring or a comment begins with a word that names nothing."""
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        line = line.lstrip()
        begun = UNCLEAR.search(line)
        is_wrapped = begun is not None and line.startswith(begun[1]) and before.startswith(begun[1])
        if begun is not None and not is_wrapped:
            yield number, line
        before = line


def test_docstrings_and_comments_say_what_a_thing_is() -> None:
    root = Path(__file__).parents[2]
    folders = ("csrc", "include", "python", "tests", "bench", "examples", "scripts")
    suffixes = (".py", ".h", ".c", ".cpp", ".ts")
    files = sorted(file for folder in folders for file in (root / folder).rglob("*") if file.suffix in suffixes)
    assert len(files) > 300
    assert [(str(file), *found) for file in files for found in unclear(file.read_text())] == []


def test_an_unclear_comment_is_found() -> None:
    text = '# Of a set.\nn = 1\t# its size\n# The names\n# of a set.\n/* What it is. */\n"""Who it is."""\n'
    assert [number for number, _ in unclear(text)] == [1, 2, 5, 6]


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of a function's lines without its docstring."""
    doc = node.body[0] if ast.get_docstring(node) else None
    return lines_of(node) - (lines_of(doc) if doc is not None else 0)


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def test_no_function_is_longer_than_60_lines() -> None:
    functions = {
        f"{module}.{node.name}": length(node)
        for module, file in MODULES.items()
        for node in nodes_of(file)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert len(functions) > 1000
    assert {name: n for name, n in functions.items() if n > 60} == {}


def test_no_file_is_longer_than_700_lines() -> None:
    root = Path(__file__).parents[2]
    folders = ("csrc", "python", "tests", "bench", "examples", "scripts")
    suffixes = (".py", ".c", ".cpp", ".h")
    files = [file for folder in folders for file in (root / folder).rglob("*") if file.suffix in suffixes]
    assert len(files) > 100
    assert [(str(f), n) for f in files if (n := len(f.read_text().splitlines())) > 700] == []
