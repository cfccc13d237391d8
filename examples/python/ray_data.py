"""Label a table on the machines of a Ray cluster: pip install 'token-trie[demo]' 'ray[data]'."""

import ray
import token_trie
from token_trie.engines.data import Labeller

options = {
    "model": token_trie.demo_model(),  # a GGUF file, at the same place on all machines
    "prompt": "Review: {text}\nSentiment:",
    "choices": ["positive", "negative"],
    "n_threads": 1,  # the worker's share of the cores
}

ray.init(num_cpus=3, runtime_env={"env_vars": {"GOMP_SPINCOUNT": "1000"}})  # two for the workers, one to read and write
reviews = [{"id": i, "text": f"It is {'a fine' if i % 3 else 'an awful'} thing, number {i}."} for i in range(64)]
rows = ray.data.from_items(reviews).repartition(4)  # or ray.data.read_parquet("reviews.parquet")
labelled = rows.map_batches(
    Labeller, fn_constructor_kwargs=options, compute=ray.data.ActorPoolStrategy(size=2), num_cpus=1, batch_size=None
)
for row in labelled.sort("id").take(6):
    print(row["id"], row["label"], round(row["probability"], 2), row["error"])
ray.shutdown()
