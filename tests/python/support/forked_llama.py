"""Other libraries under the name llama_cpp: copies of the package that is installed, with a changed libllama."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import llama_cpp

PACKAGE = Path(llama_cpp.__file__).parent
GGML = "libggml-base.so.0"
LLAMA = "libllama.so.0"

# A libllama whose llama_context_params has one more member in front; the rest is done by the library behind it.
_WITH_ONE_MORE_MEMBER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#define llama_context_default_params hidden_params
#define llama_init_from_model hidden_init
#include "llama.h"
#undef llama_context_default_params
#undef llama_init_from_model

struct changed { uint64_t fork_extra; struct llama_context_params rest; };

struct changed llama_context_default_params(void) {
    struct llama_context_params (*next)(void) = dlsym(RTLD_NEXT, "llama_context_default_params");
    struct changed params = {7, next()};
    return params;
}

struct llama_context * llama_init_from_model(struct llama_model * model, struct changed params) {
    struct llama_context * (*next)(struct llama_model *, struct llama_context_params) =
        dlsym(RTLD_NEXT, "llama_init_from_model");
    return params.fork_extra == 7 ? next(model, params.rest) : 0;
}
"""


def fork(site: Path, changes: Mapping[str, tuple[bytes, bytes]] | None = None) -> Path:
    """Copy llama_cpp into a folder for sys.path; in each file named, replace bytes by as many others."""
    shutil.copytree(PACKAGE, site / "llama_cpp", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in (changes or {}).items():
        assert len(old) == len(new)
        data = (PACKAGE / "lib" / name).read_bytes()
        assert old in data
        for path in (site / "llama_cpp" / "lib").glob(name.removesuffix(".0") + "*"):
            path.unlink()
            path.write_bytes(data.replace(old, new))
    return site


def cut(site: Path, name: str, n_bytes: int | None) -> None:
    """Keep the first bytes of a file in a fork; None: remove it."""
    data = (PACKAGE / "lib" / name).read_bytes()
    for path in (site / "llama_cpp" / "lib").glob(name.removesuffix(".0") + "*"):
        path.unlink()
        if n_bytes is not None:
            path.write_bytes(data[:n_bytes])


def declare_one_more_member(site: Path) -> None:
    """Change what llama_cpp declares."""
    module = site / "llama_cpp" / "llama_cpp.py"
    before, name, after = module.read_text(encoding="utf-8").partition("class llama_context_params(")
    changed = after.replace("_fields_ = [", '_fields_ = [("fork_extra", ctypes.c_uint64),', 1)
    module.unlink()
    module.write_text(before + name + changed, encoding="utf-8")


def fork_with_one_more_member(site: Path) -> Path:
    """Make a fork with headers, which works, and whose llama_context_params has one more member."""
    plain = b"libplain.so.0"
    fork(site, {LLAMA: (LLAMA.encode(), plain)})
    declare_one_more_member(site)
    shutil.copytree(PACKAGE.parent / "include", site / "include")
    libraries = site / "llama_cpp" / "lib"
    (libraries / LLAMA).rename(libraries / plain.decode())
    for path in libraries.glob("libllama.so*"):
        path.unlink()
    (site / "fork.c").write_text(_WITH_ONE_MORE_MEMBER, encoding="utf-8")
    command = ["cc", "-shared", "-fPIC", "-o", libraries / LLAMA, site / "fork.c", f"-I{site / 'include'}", "-ldl"]
    flags = f"-Wl,-soname,{LLAMA},-rpath,$ORIGIN,-rpath-link,{libraries},--no-as-needed"
    subprocess.run([*command, flags, libraries / plain.decode()], check=True)
    (libraries / "libllama.so").symlink_to(LLAMA)
    header = site / "include" / "llama.h"
    text, n = re.subn(r"struct llama_context_params \{", r"\g<0> uint64_t fork_extra;", header.read_text())
    assert n == 1
    header.write_text(text)
    return site
