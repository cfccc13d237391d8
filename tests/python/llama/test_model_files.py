"""Models in the folders of other programs, laid out as these lay them out."""

import json
import os
import shutil
from pathlib import Path

import pytest
from token_trie import ArgumentError, choose, demo_model, open_model
from token_trie.llama.model_files import find_model


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder, where no variable names another one."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def put(path: Path, content: bytes = b"GGUF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def put_ollama(models: Path, name: str, digest: str = "a" * 64, *, blob: bool = True, v2: bool = False) -> Path:
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'0' * 64}"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    folder = "manifests-v2/ollama.com" if v2 else "manifests/registry.ollama.ai"
    put(models / folder / name, json.dumps({"layers": layers}).encode())
    path = models / "blobs" / f"sha256-{digest}"
    return put(path) if blob else path


def test_a_path_is_a_model_also_where_its_name_begins_as_a_place(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(home / "model.gguf")
    assert find_model(file) == find_model(str(file)) == file
    if os.name != "nt":
        monkeypatch.chdir(home)
        put(home / "ollama:x")
        assert find_model("ollama:x") == Path("ollama:x")


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("library/qwen3/4b", "ollama:qwen3:4b"),
        ("library/qwen3/4b", "ollama:Qwen3:4B"),
        ("library/qwen3/latest", "ollama:qwen3"),
        ("anna/mails/latest", "ollama:anna/mails"),
    ],
)
@pytest.mark.parametrize("v2", [False, True])
def test_a_model_of_ollama_is_the_blob_that_its_manifest_names(home: Path, stored: str, name: str, v2: bool) -> None:
    blob = put_ollama(home / ".ollama" / "models", stored, v2=v2)
    assert find_model(name) == blob


def test_models_of_another_registry_have_its_name(home: Path) -> None:
    models = home / ".ollama" / "models"
    put_ollama(models, "library/qwen3/4b", "b" * 64)
    blob = put_ollama(models, "../hf.co/bartowski/Llama-GGUF/Q4_K_M")
    assert find_model("ollama:hf.co/bartowski/llama-gguf:q4_k_m") == blob


def test_the_folder_of_ollama_is_the_one_of_its_variable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ollama(home / ".ollama" / "models", "library/other/latest")
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "big disk"))
    blob = put_ollama(home / "big disk", "library/qwen3/4b")
    assert find_model("ollama:qwen3:4b") == blob
    with pytest.raises(ArgumentError, match=r"there is no model 'ollama:other'; there are:\n  ollama:qwen3:4b$"):
        find_model("ollama:other")


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b'{"layers": 7}',
        b'{"layers": [{}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../secret"}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": 7}]}',
    ],
)
def test_a_broken_manifest_is_no_model(home: Path, manifest: bytes) -> None:
    put(home / ".ollama" / "models" / "manifests" / "registry.ollama.ai" / "library" / "x" / "latest", manifest)
    blob = put_ollama(home / ".ollama" / "models", "library/qwen3/4b")
    put_ollama(home / ".ollama" / "models", "library/gone/4b", "c" * 64, blob=False)
    assert find_model("ollama:qwen3:4b") == blob
    for name in ("x", "gone:4b"):
        with pytest.raises(ArgumentError, match="there is no model"):
            find_model(f"ollama:{name}")


@pytest.mark.parametrize("folder", [".lmstudio", ".cache/lm-studio", "elsewhere"])
@pytest.mark.parametrize(
    "name",
    [
        "qwen/Qwen3-4B-GGUF",
        "qwen3-4b-gguf",
        "qwen3-4b-gguf:q4",
        "qwen3-4b-q4_k_m",
        "qwen/qwen3-4b-gguf/qwen3-4b-q4_k_m.gguf",
    ],
)
def test_a_model_of_lm_studio_has_the_names_of_its_folders_and_of_its_file(home: Path, folder: str, name: str) -> None:
    put(home / ".lmstudio-home-pointer", str(home / "elsewhere").encode())
    file = put(home / folder / "models" / "qwen" / "Qwen3-4B-GGUF" / "Qwen3-4B-Q4_K_M.gguf")
    put(file.with_name("mmproj-Qwen3-4B-f16.gguf"))
    put(home / folder / "models" / "qwen" / "Qwen3-14B-GGUF" / "Qwen3-14B-Q4_K_M.gguf")
    assert find_model(f"lmstudio:{name}") == file


def test_a_file_of_the_hugging_face_cache_is_the_one_of_the_newest_revision(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = home / ".cache" / "huggingface" / "hub" / "models--unsloth--Qwen3-4B-GGUF" / "snapshots"
    old, new = (put(snapshots / revision / "Qwen3-4B-Q4_K_M.gguf") for revision in ("fff", "aaa"))
    os.utime(old.parent, (1, 1))
    assert find_model("hf:unsloth/Qwen3-4B-GGUF") == new
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(home / name))
        with pytest.raises(ArgumentError, match="there is no model 'hf:unsloth/Qwen3-4B-GGUF', nor another one of hf"):
            find_model("hf:unsloth/Qwen3-4B-GGUF")


def test_of_several_files_one_has_to_be_named(home: Path) -> None:
    snapshot = home / ".cache" / "huggingface" / "hub" / "models--a--b" / "snapshots" / "1"
    small, _ = put(snapshot / "b-Q4_K_M.gguf"), put(snapshot / "b-Q8_0.gguf")
    first = put(snapshot / "BF16" / "b-BF16-00001-of-00012.gguf")
    for part in range(2, 13):
        put(first.with_name(f"b-BF16-{part:05}-of-00012.gguf"))
    with pytest.raises(ArgumentError) as raised:
        find_model("hf:a/b")
    assert str(raised.value).splitlines() == [
        "several models are 'hf:a/b'; name one of:",
        "  hf:a/b/BF16/b-BF16-00001-of-00012.gguf",
        "  hf:a/b/b-Q4_K_M.gguf",
        "  hf:a/b/b-Q8_0.gguf",
    ]
    assert find_model("hf:a/b:Q4_K_M") == find_model("hf:a/b/b-Q4_K_M.gguf") == small
    assert find_model("hf:a/b:bf16") == first


@pytest.mark.parametrize("pointer", [b"x" * 5000, b"\xff", b"\0"])
def test_a_broken_pointer_of_lm_studio_points_nowhere(home: Path, pointer: bytes) -> None:
    put(home / ".lmstudio-home-pointer", pointer)
    file = put(home / ".lmstudio" / "models" / "a" / "b" / "c.gguf")
    assert find_model("lmstudio:a/b") == file


def test_a_list_of_many_models_is_cut(home: Path) -> None:
    for i in range(30):
        put(home / ".lmstudio" / "models" / "a" / f"m{i:02}" / "x.gguf")
    with pytest.raises(ArgumentError) as raised:
        find_model("lmstudio:none")
    assert str(raised.value).endswith("\n  lmstudio:a/m19/x.gguf\n  and 10 more")


@pytest.mark.parametrize("name", ["nowhere.gguf", "vllm:x", "", "C:\\models\\x.gguf", "x" * 5000])
def test_what_is_neither_a_file_nor_a_place_is_refused(home: Path, name: str) -> None:
    with pytest.raises(ArgumentError, match=r"no file .*ollama, lmstudio, hf"):
        find_model(name)


def test_a_model_of_ollama_answers(home: Path) -> None:
    blob = put_ollama(home / ".ollama" / "models", "library/smollm2/135m")
    blob.unlink()
    try:
        os.link(demo_model(), blob)
    except OSError:
        shutil.copy(demo_model(), blob)
    llm = open_model("ollama:smollm2:135m", n_ctx=512)
    try:
        assert llm.n_ctx() == 512
        assert choose(llm, "The sky is", ["blue", "green"]).value in ("blue", "green")
    finally:
        llm.close()
