"""A server's configuration, and what its requests are answered by: a model, its sets and its calibrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from token_trie.native.core import Llama
from token_trie.serve.calibrations import Calibrations
from token_trie.serve.engine import Engine
from token_trie.serve.limits import Limits
from token_trie.serve.sets import Sets


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Options of a server; see ``token-trie serve --help``."""

    load: Callable[[], Llama]
    """Loads the model."""
    name: str
    """The name of the model in answers."""
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    allow_host: tuple[str, ...] = ()
    n_parallel: int = 0
    reproducible: bool = False
    sets: Path | None = None
    calibrations: tuple[Path, ...] = ()
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Service:
    """Answers requests."""

    config: ServerConfig
    engine: Engine
    sets: Sets
    calibrations: Calibrations

    @classmethod
    def start(cls, config: ServerConfig) -> Service:
        """Load the model, its sets and calibrations; TokenTrieError or OSError if one of them cannot be used."""
        calibrations, llm = Calibrations(config.calibrations), config.load()
        calibrations.require_fitting(llm)
        sets = Sets() if config.sets is None else Sets.read(llm, config.sets)
        engine = Engine(llm, n_parallel=config.n_parallel, reproducible=config.reproducible)
        return cls(config, engine, sets, calibrations)
