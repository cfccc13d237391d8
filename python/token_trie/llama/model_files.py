"""Models where people have them: a file, or a name that Ollama, LM Studio or the Hugging Face cache knows.

    ollama:qwen3:4b        manifests/registry.ollama.ai/library/qwen3/4b  ->  blobs/sha256-...
    lmstudio:qwen3-4b      models/publisher/qwen3-4b-gguf/qwen3-4b-q4_k_m.gguf
    hf:owner/name:q4_k_m   hub/models--owner--name/snapshots/revision/name-q4_k_m.gguf

Nothing is downloaded, and no program is asked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from token_trie.errors import ArgumentError
from token_trie.native.core import Llama, llama_cpp

_MAX_LISTED = 20
_OLLAMA_HOSTS = ("registry.ollama.ai/", "ollama.com/")
_WEIGHTS = "application/vnd.ollama.image.model"
_OTHER_FILE = re.compile(r"mmproj|-0*([02-9]|1\d+)-of-\d+\.gguf$", re.IGNORECASE)  # for images; a later part


def open_model(name: str | os.PathLike[str], *, n_ctx: int = 4096, **options: Any) -> Llama:
    """Load a GGUF file, or a model that another program has: ``ollama:NAME``, ``lmstudio:NAME`` or ``hf:OWNER/NAME``.

    Parameters
    ----------
    name
        A path; or where to look, and the name there: ``ollama:qwen3:4b``; ``lmstudio:`` with the publisher and model,
        or the model alone; ``hf:owner/name``. After a colon, a part of the file's name says which of several files.
    n_ctx
        Tokens of the context.
    options
        Those of `llama_cpp.Llama`; ``verbose`` is False by default.

    Raises
    ------
    ArgumentError
        There is no such model, or there are several; the message lists them.

    Examples
    --------
    >>> llm = token_trie.open_model("ollama:qwen3:4b")   # doctest: +SKIP
    """
    return llama_cpp.Llama(str(find_model(name)), n_ctx=n_ctx, **({"verbose": False} | options))


def find_model(name: str | os.PathLike[str]) -> Path:
    """Return the file of a model, as `open_model` takes it. ArgumentError if there is none, or several."""
    text = os.fspath(name)
    where, _, wanted = text.partition(":")
    with suppress(OSError):  # a name too long
        if Path(text).is_file():
            return Path(text)
    if where not in _PLACES:
        raise ArgumentError(f"no file {text!r}; names of other programs begin with {', '.join(_PLACES)} and a colon")
    files, is_named = _PLACES[where]
    there = dict(files())
    found = {each: path for each, path in there.items() if is_named(each.lower(), wanted.lower())}
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    listed = sorted(found or there)
    shown = "".join(f"\n  {where}:{each}" for each in listed[:_MAX_LISTED])
    more = f"\n  and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
    what = f"several models are {text!r}; name one of:" if found else f"there is no model {text!r}; there are:"
    raise ArgumentError(f"{what}{shown}{more}" if listed else f"there is no model {text!r}, nor another one of {where}")


def _ollama() -> Iterator[tuple[str, Path]]:
    of_user, of_service = Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")
    folders = [Path(os.environ["OLLAMA_MODELS"])] if os.environ.get("OLLAMA_MODELS") else [of_service, of_user]
    for folder in folders:
        for manifest in sorted(folder.glob("manifests*/*/*/*/*")):
            name, _, tag = manifest.relative_to(folder).as_posix().partition("/")[2].rpartition("/")
            for host in _OLLAMA_HOSTS:
                name = name.removeprefix(host)
            weights = _ollama_weights(folder, manifest)
            if weights is not None:
                yield f"{name.removeprefix('library/')}:{tag}", weights


def _ollama_weights(folder: Path, manifest: Path) -> Path | None:
    """Return the blob with a model's weights; None for a model in another format, or one that is not whole."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        for layer in json.loads(manifest.read_bytes())["layers"]:
            digest = re.fullmatch(r"sha256:([0-9a-f]{64})", layer["digest"])
            if layer["mediaType"] == _WEIGHTS and digest:
                blob = folder / "blobs" / f"sha256-{digest[1]}"
                return blob if blob.is_file() else None
    return None


def _lmstudio() -> Iterator[tuple[str, Path]]:
    homes = [Path.home() / ".cache" / "lm-studio", Path.home() / ".lmstudio"]
    with suppress(OSError, ValueError):
        homes.append(Path((Path.home() / ".lmstudio-home-pointer").read_text().strip()))
    for home in homes:
        yield from _gguf_files(home / "models", "*/*/*.gguf")


def _hf() -> Iterator[tuple[str, Path]]:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    revisions: list[Path] = []
    with suppress(OSError, ValueError):  # a path that cannot be
        revisions = sorted(hub.glob("models--*/snapshots/*"), key=lambda revision: revision.stat().st_mtime)
    for revision in revisions:  # the newest file of a name stays
        repository = revision.parts[-3].removeprefix("models--").replace("--", "/", 1)
        yield from ((f"{repository}/{name}", file) for name, file in _gguf_files(revision, "**/*.gguf"))


def _gguf_files(folder: Path, pattern: str) -> Iterator[tuple[str, Path]]:
    """Yield the names of files in a folder, and their paths."""
    with suppress(OSError, ValueError):  # a path that cannot be
        for file in sorted(folder.glob(pattern)):
            if file.is_file() and not _OTHER_FILE.search(file.name):
                yield file.relative_to(folder).as_posix(), file


def _is_tag(name: str, wanted: str) -> bool:
    return name == wanted or name == f"{wanted}:latest"


def _is_file(name: str, wanted: str) -> bool:
    """Whether the wanted folders or file stand in a file's name, and what follows a colon in its last part."""
    path, _, part = wanted.partition(":")
    return f"/{path.removesuffix('.gguf')}/" in f"/{name.removesuffix('.gguf')}/" and part in name.rpartition("/")[2]


_PLACES: dict[str, tuple[Callable[[], Iterator[tuple[str, Path]]], Callable[[str, str], bool]]] = {
    "ollama": (_ollama, _is_tag),
    "lmstudio": (_lmstudio, _is_file),
    "hf": (_hf, _is_file),
}
