from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from token_trie.native.ffi import LIBRARY, ffi

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the source tree")


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, env=os.environ | (env or {})
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_decision(output: str, action: str) -> None:
    """Check what both streaming examples print."""
    printed, reply, _, summary = output.splitlines()
    assert printed == f"Action: {action}"
    assert reply.startswith("Reply:")
    # The first branch point is the prompt's pass; weather_report is the only one to begin as it does.
    passes = 0 if action == "weather_report" else 1
    counts = rf"tokens chosen: {passes + 1}, forced: \d+; passes: {passes}"
    assert re.fullmatch(rf"{action} \(\d+\.\d %\); {counts}", summary)


def compile_with_cmake(source: Path, build: Path, *options: str) -> Path:
    cmake = BIN / "cmake" if (BIN / "cmake").exists() else "cmake"
    cmake_dir = run(BIN / "token-trie", "--cmake-dir").strip()
    run(cmake, "-S", source, "-B", build, f"-Dtoken_trie_DIR={cmake_dir}", *options)
    run(cmake, "--build", build)
    return build


def test_each_function_of_the_header_occurs_in_an_example_and_in_a_test() -> None:
    root = EXAMPLES.parent
    header = re.sub(r"/\*.*?\*/", "", (root / "include" / "token_trie.h").read_text(), flags=re.DOTALL)
    functions = re.findall(r"^TOKEN_TRIE_API [^;(]*?(\w+)\(", header, flags=re.MULTILINE)
    assert 50 <= len(functions) <= 60
    for folder in (EXAMPLES, root / "tests"):
        sources = (file for suffix in ("c", "cpp", "h", "py", "ts") for file in folder.rglob(f"*.{suffix}"))
        words = set(re.findall(r"\w+", "\n".join(file.read_text() for file in sources)))
        assert [function for function in functions if function not in words] == [], folder


# C


@pytest.fixture(scope="module")
def c_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    flags = "-Wall -Wextra -Wpedantic -Wconversion -Werror"
    return compile_with_cmake(EXAMPLES / "c", tmp_path_factory.mktemp("c"), f"-DCMAKE_C_FLAGS={flags}")


@pytest.fixture
def smollm2(model_paths: dict[str, Path]) -> Path:
    return model_paths["smollm2"]


def test_a_c_program_reads_makes_opens_and_filters_sets(c_examples: Path, smollm2: Path, tmp_path: Path) -> None:
    table, file = tmp_path / "colors.csv", tmp_path / "colors.trie"
    table.write_text("color\n red\n blue\n")
    run(BIN / "token-trie", "build", table, "--text", "color", "--model", smollm2, "--output", file)
    version, *sets, cache = run(c_examples / "sets", smollm2, file).splitlines()
    assert re.fullmatch(r"token-trie \d+\.\d+\.\d+", version)
    assert sets == [
        'action: 2 of 2 members, 3 nodes: "READ"/1 "READ_FILE"/2',
        'place: 1 of 1 members, 3 nodes: "HERE"/2',
        'filtered: 2 of 3 members, 4 nodes: " red"/1 " blue"/1',
        'tokens: 2 of 2 members, 5 nodes: "first"/2 "second"/3',
        'file: 2 of 2 members, 3 nodes: " red"/1 " blue"/1',
    ]
    assert re.fullmatch(r"cache: \d+ of 128 entries", cache)


@pytest.mark.parametrize(
    ("word", "output"),
    [
        ("write", ["write", "wr", "row 0: r", "row 1: r w"]),
        ("rest", ["read", "re", "row 0: e", "row 1: r w"]),
        ("rp", ["read", "re", "row 0: e", "row 1: r w"]),
    ],
)
def test_a_c_program_masks_the_logits_of_its_own_engine(c_examples: Path, word: str, output: list[str]) -> None:
    assert run(c_examples / "matcher", word).splitlines() == output


def test_a_c_program_answers_many_prompts_and_cancels_a_text(c_examples: Path, smollm2: Path) -> None:
    *labels, text, end = run(c_examples / "batch", smollm2).splitlines()
    reviews = {
        "What a great film!": "positive",
        "Terrible acting, awful plot.": "negative",
        "My new favorite book.": "positive",
    }
    assert dict(label.split(": ") for label in labels) == reviews
    assert text.startswith("Reply: ")
    assert end in ("[cancelled]", "[ended by itself]")


def test_a_c_program_ranks_a_set(c_examples: Path, smollm2: Path) -> None:
    first, second, proof, *shares = run(c_examples / "ranking", smollm2, "The capital of India is").splitlines()
    percent = {city: float(share) for share, city in (line.split(" % ") for line in shares)}
    ranked = sorted(percent, key=lambda city: -percent[city])
    assert [first, second] == [f"1. {ranked[0]}", f"2. {ranked[1]}"]
    assert ranked[0] == "New Delhi"
    assert proof.startswith("proved")
    assert sum(percent.values()) == pytest.approx(100, abs=0.3)


def test_a_c_program_evaluates_a_prompt_once_for_a_stream_and_its_fork(c_examples: Path, smollm2: Path) -> None:
    imported, happy, sad = run(c_examples / "prefix", smollm2).splitlines()
    assert re.fullmatch(r"(\d+) of \1 tokens imported", imported)
    assert happy.startswith("Happy ending:")
    assert sad.startswith("Sad ending:")


def test_a_c_program_writes_a_list_without_repeats(c_examples: Path, smollm2: Path) -> None:
    *items, end = run(c_examples / "list", smollm2, "Tags of a pasta recipe:").splitlines()
    tags = [re.fullmatch(r" (\w+): \d+ %, tokens \d+ to \d+", item) for item in items]
    names = [tag[1] for tag in tags if tag]
    assert len(set(names)) == len(items)
    assert 2 <= len(items) <= 3
    assert end == ("max_items reached" if len(items) == 3 else "the model ended the list")


def test_a_c_program_writes_text_under_a_grammar(c_examples: Path, smollm2: Path) -> None:
    prompt, grammar = "The capital of France is", 'root ::= " " [A-Z] [a-z]+ "."'
    output = run(c_examples / "text", smollm2, prompt, grammar)
    assert re.fullmatch(rf"{prompt} [A-Z][a-z]+\.\n\[the model ended the text\]\n", output)


def test_a_c_program_cancels_its_text_at_ctrl_c(c_examples: Path, smollm2: Path) -> None:
    endless = 'root ::= " a"+'
    program = subprocess.Popen([c_examples / "text", smollm2, "A", endless], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    start = program.stdout.read(3)
    program.send_signal(signal.SIGINT)
    rest, _ = program.communicate()
    assert start == "A a"
    assert program.returncode == 0
    assert rest.endswith(("[cancelled]\n", "[max_tokens reached]\n"))


# C++


@pytest.fixture(scope="module")
def cpp_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    return compile_with_cmake(EXAMPLES / "cpp", tmp_path_factory.mktemp("cpp"))


@pytest.mark.parametrize("request_", ["Wake me up at six o'clock", "Text Sam that I am late"])
def test_a_cpp_program_finds_the_package_and_decides(
    cpp_examples: Path, model_paths: dict[str, Path], request_: str
) -> None:
    prompt = f"Request: Will it rain?\nAction: GET_WEATHER\nRequest: {request_}.\nAction:"
    answer = run(cpp_examples / "choose_action", model_paths["smollm2"], prompt).strip()
    assert answer in {"SET_ALARM", "SEND_MESSAGE", "GET_WEATHER"}


def test_a_cpp_program_streams_from_a_file(cpp_examples: Path, model_paths: dict[str, Path]) -> None:
    output = run(cpp_examples / "stream_action", model_paths["smollm2"], "Wake me up at six.")
    check_decision(output, "alarm_set")


# TypeScript


def bun_package() -> str:
    """Name of the npm package with this platform's runtime."""
    machine = {"x86_64": "x64", "amd64": "x64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    musl = "-musl" if sys.platform == "linux" and platform.libc_ver()[0] != "glibc" else ""
    return f"@oven/bun-{sys.platform}-{machine}{musl}"


@pytest.fixture(scope="module")
def bun(pytestconfig: pytest.Config) -> Path:
    package = bun_package()
    folder = pytestconfig.cache.mkdir("bun")
    binary = folder / "node_modules" / package / "bin" / "bun"
    if not binary.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"{package} cannot be installed: there is no npm")
        options = ["--no-save", "--no-audit", "--no-fund", "--fetch-retries=1", "--loglevel=error"]
        command = [npm, "install", *options, "--prefix", str(folder), f"{package}@^1.3"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            pytest.skip(f"{package} cannot be installed: {result.stderr.strip().partition(chr(10))[0]}")
    if subprocess.run([binary, "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{package} does not run on this machine")
    return binary


def test_a_typescript_client_knows_the_layout_of_the_structs(bun: Path, tmp_path: Path) -> None:
    script = tmp_path / "layouts.ts"
    script.write_text(f"""
        import {{ LAYOUTS }} from {json.dumps(str(EXAMPLES / "bun" / "token_trie.ts"))};
        const all = Object.entries(LAYOUTS).map(([name, {{ bytes, members }}]) =>
            [name, {{ bytes, members: [...members].map(([member, {{ at, kind }}]) => [member, at, kind.width]) }}]);
        console.log(JSON.stringify(Object.fromEntries(all)));
    """)
    layouts = json.loads(run(bun, script))
    assert set(layouts) == {
        "token_trie_stream_params",
        "token_trie_sampling",
        "token_trie_token",
        "token_trie_stream_state",
    }
    for name, layout in layouts.items():
        struct = ffi.typeof(f"struct {name}")
        members = [[member, field.offset, ffi.sizeof(field.type)] for member, field in struct.fields]
        assert layout == {"bytes": ffi.sizeof(struct), "members": members}


@pytest.mark.parametrize(
    ("request_", "action"), [("Wake me up at six.", "alarm_set"), ("Is it cold in Oslo?", "weather_report")]
)
def test_a_typescript_client_decides_with_one_llama_in_the_process(
    bun: Path, model_paths: dict[str, Path], tmp_path: Path, request_: str, action: str
) -> None:
    maps, preload = tmp_path / "maps", tmp_path / "preload.ts"
    preload.write_text(f"""
        import {{ copyFileSync, existsSync }} from "node:fs";
        process.on("exit", () => existsSync("/proc/self/maps") &&
            copyFileSync("/proc/self/maps", {json.dumps(str(maps))}));
    """)
    client = [EXAMPLES / "bun" / "choose_action.ts", "--threads", "1", model_paths["smollm2"], request_]
    output = run(bun, "--preload", preload, *client, env={"TOKEN_TRIE_LIBRARY": str(LIBRARY), "NO_COLOR": "1"})
    check_decision(output, action)
    if sys.platform == "linux":
        files = {line.split()[-1] for line in maps.read_text().splitlines()}
        for library in ("libtoken_trie", "libllama", "libggml-base", "libggml-cpu"):
            assert len([file for file in files if Path(file).name.startswith(f"{library}.")]) == 1, library


def test_a_typescript_client_shows_why_a_call_failed(bun: Path, tmp_path: Path) -> None:
    client = [bun, EXAMPLES / "bun" / "choose_action.ts", "--library", LIBRARY, tmp_path / "no.gguf", "Wake me."]
    result = subprocess.run(client, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert 'no.gguf" cannot be opened' in result.stderr


# Python

NEEDS = {"classify_table": "pandas", "extract": "pydantic", "scikit_learn": "sklearn", "ray_data": "ray"}


def script(name: str, folder: Path) -> list[str]:
    """Run one of the scripts, and return the lines that it prints."""
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{name}.py needs {NEEDS[name]}")
    file = EXAMPLES / "python" / f"{name}.py"
    return run(sys.executable, file, env={"TMPDIR": str(folder), "GOMP_SPINCOUNT": "1000"}).splitlines()


def test_a_script_has_at_most_60_lines() -> None:
    files = [*(EXAMPLES / "python").glob("*.py")]
    assert len(files) == 8
    assert [file.name for file in files if len(file.read_text().splitlines()) > 60] == []


def test_a_script_classifies_a_table(tmp_path: Path) -> None:
    head, *rows = script("classify_table", tmp_path)
    assert head.split() == ["text", "team", "probability"]
    assert len(rows) == 8
    assert rows[-1].split()[-2] == "technical"


def test_a_script_extracts_records(tmp_path: Path) -> None:
    lines = script("extract", tmp_path)
    assert len(lines) == 6
    assert re.search(r"product='.*' colour=.* quantity=3 express=(True|False)", lines[1])


def test_a_script_calls_tools(tmp_path: Path) -> None:
    assert script("agent", tmp_path)[0] == "get_weather {'city': 'Oslo'}"


def test_a_script_finds_an_item_in_stock(tmp_path: Path) -> None:
    every, first, *others = script("catalogue", tmp_path)
    assert every == "all: 40,000 items"
    assert first.strip() == "Green wool scarf by Berg"
    assert others[2] == "in stock: 38,000 items"
    assert not [line for line in others[3:] if line.endswith("by Berg")]


def test_a_script_judges_by_scikit_learn(tmp_path: Path) -> None:
    *ways, predicted = script("scikit_learn", tmp_path)
    assert [re.split(r" {2,}", way)[0] for way in ways[:2]] == ["as it is", "a bias a class"]
    assert len(ways) == 4
    assert predicted == "['billing' 'technical']"


def test_a_script_labels_with_ray(tmp_path: Path) -> None:
    rows = [line for line in script("ray_data", tmp_path) if re.match(r"\d+ (positive|negative) ", line)]
    assert [int(row.split()[0]) for row in rows] == [*range(6)]


def test_a_script_chooses_by_the_configuration_of_rtp_llm(tmp_path: Path) -> None:
    n, answer = script("rtp_llm", tmp_path)
    assert n == "3"
    assert answer.strip() in {"set_alarm", "set_timer", "play_music"}


def test_a_script_serves_tools_to_an_assistant() -> None:
    mcp = pytest.importorskip("mcp", reason="mcp_server.py needs mcp")
    from mcp.client.stdio import stdio_client

    async def talk() -> list[object]:
        command = mcp.StdioServerParameters(
            command=sys.executable, args=[str(EXAMPLES / "python" / "mcp_server.py")], env={**os.environ}
        )
        async with mcp.Client(stdio_client(command)) as client:
            team = {
                "state": "I was charged twice.",
                "question": "Which team?",
                "options": {"billing": "payments and charges", "technical": "the app does not work"},
            }
            city = {"prompt": "What is the capital of France?", "choices": ["Paris", "Rome"]}
            results = [await client.call_tool("decide", team), await client.call_tool("choose", city)]
            return [result.structured_content for result in results]

    decided, chosen = asyncio.run(talk())
    assert isinstance(decided, dict)
    assert sorted(decided["probabilities"]) == ["billing", "technical"]
    assert isinstance(chosen, dict)
    assert chosen["choice"] in ("Paris", "Rome")
