"""A server of the Model Context Protocol whose tools decide and choose: pip install 'token-trie[demo]' 'mcp>=2.3'.

An assistant starts it itself:
{"mcpServers": {"token-trie": {"command": "python", "args": ["mcp_server.py", "model.gguf"]}}}
"""

import sys
from typing import Any

import llama_cpp
import token_trie
from mcp.server import MCPServer

model = sys.argv[1] if len(sys.argv) > 1 else token_trie.demo_model()
llm = llama_cpp.Llama(model, n_ctx=4096, verbose=False)
server = MCPServer("token-trie")


@server.tool()
def decide(state: str, question: str, options: dict[str, str]) -> dict[str, Any]:
    """Answer a question about a state with one of the options, {name: description}; with the probability of each.

    Describe options alike, each as one would say it in answer.
    """
    answer = token_trie.decide(llm, state, token_trie.Choice(question, options))
    return {"choice": answer.value, "probabilities": answer.probabilities}


@server.tool()
def choose(prompt: str, choices: list[str]) -> dict[str, Any]:
    """Continue a prompt with one of the choices. The prompt should end where the answer begins, such as "A:"."""
    answer = token_trie.choose(llm, [{"role": "user", "content": prompt}], choices, probabilities=True)
    return {"choice": answer.value, "probabilities": answer.probabilities.tolist(), "mass": answer.mass}


if __name__ == "__main__":
    server.run()  # over standard input and output
