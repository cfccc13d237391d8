"""Choose by a configuration of RTP-LLM's tree decoding: pip install 'token-trie[demo]'.

RTP-LLM itself needs a GPU. This shows that a set is the same there and here.
"""

import json
import tempfile
from pathlib import Path

import llama_cpp
import token_trie
from token_trie import TokenTrie

llm = llama_cpp.Llama(token_trie.demo_model(), n_ctx=512, verbose=False)  # the same tokenizer as in RTP-LLM
prompt = "Request: Wake me at seven.\nAction:"
start = llm.tokenize(prompt.encode())[-1]  # the token that prompts end in
end = llm.token_eos()

# The configuration: what may come after each beginning of an answer.
follows: dict[str, set[int]] = {}
for action in ["set_alarm", "set_timer", "play_music"]:
    path = [start, *llm.tokenize(f" {action}".encode(), add_bos=False), end]
    for i in range(1, len(path)):
        follows.setdefault("_".join(map(str, path[:i])), set()).add(path[i])
config = {"start_token_id": start, "end_token_id": end, "sep": "_"}
config["prefix_dict"] = {key: sorted(tokens) for key, tokens in follows.items()}
file = Path(tempfile.gettempdir()) / "tree_decode.json"
file.write_text(json.dumps(config))

# Members are named by their position.
actions = TokenTrie.from_prefix_dict(file)
print(len(actions))
decision = token_trie.choose(llm, prompt, actions)
print(llm.detokenize(list(actions[decision.index].tokens)).decode())
