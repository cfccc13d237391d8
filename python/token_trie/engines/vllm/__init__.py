"""Sets in vLLM: a logits processor, loaded by its name.

`TrieLogitsProcessor` describes the options of a request.

Examples
--------
>>> llm = LLM(model, logits_processors=["token_trie.engines.vllm:TrieLogitsProcessor"])    # doctest: +SKIP
>>> params = SamplingParams(max_tokens=32, extra_args={"token_trie": {"choices": ["yes", "no"]}})    # doctest: +SKIP
"""

from token_trie.engines.vllm.processor import TrieLogitsProcessor

__all__ = ["TrieLogitsProcessor"]
