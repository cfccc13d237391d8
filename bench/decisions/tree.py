"""The set once more, in plain Python: what token-trie's answers are checked against."""

from collections.abc import Iterable, Sequence

import numpy as np

from bench.models import Model


class Tree:
    """A set of token sequences, the end of an answer allowed after each."""

    def __init__(self, sequences: Iterable[Sequence[int]], end_tokens: list[int]) -> None:
        self._children: list[dict[int, int]] = [{}]
        self._complete: list[bool] = [False]
        self._end_tokens = end_tokens
        for sequence in sequences:
            node = 0
            for token in sequence:
                if token not in self._children[node]:
                    self._children[node][token] = len(self._children)
                    self._children.append({})
                    self._complete.append(False)
                node = self._children[node][token]
            self._complete[node] = True

    def allowed(self, node: int) -> list[int]:
        """Return the tokens that may follow; none where an answer is over."""
        children = self._children[node]
        return [*children, *(self._end_tokens if children and self._complete[node] else [])]

    def steps(self, answer: Sequence[int]) -> list[int] | None:
        """Return the size of each set that an answer was taken from, an end among them; None for what is no member."""
        node, sizes = 0, []
        for token in answer:
            sizes.append(len(self.allowed(node)))
            if token not in self._children[node]:
                return None
            node = self._children[node][token]
        if not self._complete[node]:
            return None
        return [*sizes, len(self.allowed(node))] if self._children[node] else sizes

    def decode(self, model: Model) -> tuple[list[int], float]:
        """Return the best answer, token by token, and how near a tie it came, in nats.

        The model's prompt is evaluated; its logits are read from llama-cpp-python's context after every token.
        """
        node, answer, nearest = 0, list[int](), float("inf")
        while allowed := self.allowed(node):
            logits = model.logits_now()[allowed]
            best = int(np.argmax(logits))
            if len(allowed) > 1:
                second, first = np.sort(logits)[-2:]
                nearest = min(nearest, float(first - second))
            token = allowed[best]
            if token not in self._children[node]:
                break
            answer.append(token)
            node = self._children[node][token]
            if self._children[node]:
                model.llm.eval([token])
        return answer, nearest


def n_branch_points_after_first(sizes: list[int]) -> int:
    """Return the forward passes that an answer needs after its prompt's: one a branch point, the first token's free."""
    return sum(size > 1 for size in sizes[1:])


def skip_ratios(sizes: list[int], n_candidates: int) -> list[float]:
    """Return the share of the vocabulary that the set left out, a step."""
    return [(n_candidates - size) / n_candidates for size in sizes]
