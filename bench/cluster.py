"""Two workers of Ray Data against two processes of `token-trie label`, each with half of the rows and one thread.

    build/data/env/bin/python -m bench.cluster --rows 20000

needs the environment that `make test-data` makes. Of each, the whole time is taken, models loaded and results written.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from token_trie.cli.models import bundled_model

CHOICES = ["positive", "negative"]
PROMPT = "Review: {text}\nSentiment:"
BY_RAY = """
import json, sys
import ray
from token_trie.engines.data import Labeller

options = json.loads(sys.argv[1])
ray.init(num_cpus=3, log_to_driver=False)
rows = ray.data.read_parquet("reviews.parquet").repartition(16)
pool = ray.data.ActorPoolStrategy(size=2)
labelled = rows.map_batches(Labeller, fn_constructor_kwargs=options, compute=pool, num_cpus=1, batch_size=None)
labelled.write_parquet("by_ray")
"""


def rows(n: int) -> list[str]:
    """Return texts of which no two are equal."""
    return [f"It is {'a fine' if i % 3 else 'an awful'} thing, number {i}." for i in range(n)]


def by_label(texts: list[str], folder: Path) -> float:
    """Return the seconds that two processes take."""
    halves = [texts[::2], texts[1::2]]
    for i, half in enumerate(halves):
        with (folder / f"half{i}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["text"], *([text] for text in half)])
    choices = [part for choice in CHOICES for part in ("-c", choice)]
    label = [str(Path(sys.executable).parent / "token-trie"), "label", "--threads", "1", "-p", PROMPT, *choices]
    began = time.perf_counter()
    running = [
        subprocess.Popen(
            [*label, f"half{i}.csv", "-o", f"out{i}.csv"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for i in range(2)
    ]
    for process in running:
        if process.wait():
            raise RuntimeError(f"token-trie label ended with {process.returncode}")
    return time.perf_counter() - began


def by_ray(texts: list[str], folder: Path) -> float:
    """Return the seconds that two workers take."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), folder / "reviews.parquet")
    options = {"model": str(bundled_model()), "prompt": PROMPT, "choices": CHOICES, "n_threads": 1}
    command = [sys.executable, "-c", BY_RAY, json.dumps(options)]
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Print the seconds of both, twice, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    n = parser.parse_args().rows
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", HF_HUB_OFFLINE="1")
    texts = rows(n)
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            alone, ray = by_label(texts, Path(folder)), by_ray(texts, Path(folder))
        print(f"{n:,} rows: label {alone:.1f} s, Ray {ray:.1f} s: {alone / ray:.0%} of the throughput", flush=True)


if __name__ == "__main__":
    main()
