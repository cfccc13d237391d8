"""scikit-build-core, asked to fetch llama-cpp-python only where the environment has none.

token-trie is compiled against the llama.cpp that it will run with. An isolated build hides the installed packages, so
this looks past the isolation (-I) and adds llama-cpp-python, whose build takes minutes, to the build's own requirements
only if it is not there. cmake/FindLlama.cmake looks in the same two places.
"""

import os
import subprocess
import sys

from scikit_build_core.build import *  # noqa: F403
from scikit_build_core.build import get_requires_for_build_editable as _requires_for_editable
from scikit_build_core.build import get_requires_for_build_wheel as _requires_for_wheel

_FIND = "import importlib.util as u, sys; sys.exit(u.find_spec('llama_cpp') is None)"


def _llama() -> list[str]:
    installed = subprocess.run([sys.executable, "-I", "-c", _FIND], check=False).returncode == 0
    # A wheel for several releases is compiled against headers alone.
    return [] if installed or os.environ.get("TOKEN_TRIE_HEADERS") else ["llama-cpp-python>=0.3.30"]


def get_requires_for_build_wheel(config_settings=None):  # noqa: D103
    return [*_requires_for_wheel(config_settings), *_llama()]


def get_requires_for_build_editable(config_settings=None):  # noqa: D103
    return [*_requires_for_editable(config_settings), *_llama()]
