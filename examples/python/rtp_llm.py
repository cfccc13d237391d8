"""Read and write RTP-LLM's configuration of tree decoding: pip install 'token-trie[demo]'.

RTP-LLM itself needs a GPU. This shows that a set is the same there and here.
"""

import json
import tempfile
from pathlib import Path

import llama_cpp
import token_trie
from token_trie import TokenTrie
from token_trie.engines.rtp_llm import write_prefix_dict

llm = llama_cpp.Llama(token_trie.demo_model(), n_ctx=512, verbose=False)  # the same tokenizer as in RTP-LLM

# Write: the actions of an agent, as the model writes them after the prompt.
prompt = "Request: Wake me at seven.\nAction:"
actions = TokenTrie.from_choices(llm, ["set_alarm", "set_timer", "play_music"], prompt=prompt)
start = llm.tokenize(prompt.encode())[-1]  # the token that prompts end in
end = llm.token_eos()
file = Path(tempfile.gettempdir()) / "tree_decode.json"
file.write_text(json.dumps(write_prefix_dict(actions, start=start, end=end)))
print(json.loads(file.read_text()))

# Read: a configuration that exists, for example of semantic ids of items. Members are named by their position.
items = TokenTrie.from_prefix_dict(file)
print([leaf.tokens for leaf in items] == sorted(leaf.tokens for leaf in actions))
decision = token_trie.choose(llm, prompt, items)
print(llm.detokenize(list(items[decision.index].tokens)).decode())
