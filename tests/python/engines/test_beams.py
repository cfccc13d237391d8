from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_trie import ArgumentError, TokenTrie

torch = pytest.importorskip("torch")
from token_trie.engines.torch import FREE, DeviceTries  # noqa: E402

V, END = 10, 2
members = st.sets(st.lists(st.integers(3, V - 1), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12)


def logits_of(prefix: tuple[int, ...]) -> Any:
    return torch.randn(V, generator=torch.Generator().manual_seed(hash(prefix) % 2**31))


def model(tokens: Any, parents: Any) -> Any:
    batch, beams, _ = tokens.shape
    assert parents.shape == (batch, beams)
    return torch.stack([torch.stack([logits_of(tuple(beam.tolist())) for beam in row]) for row in tokens])


def logprob(member: tuple[int, ...]) -> float:
    return sum(float(torch.log_softmax(logits_of(member[:i]), -1)[token]) for i, token in enumerate(member))


@settings(max_examples=40, deadline=None)
@given(st.lists(members, min_size=1, max_size=2), st.booleans(), st.booleans())
def test_beams_wide_enough_find_all_members_in_order(
    sets: list[set[tuple[int, ...]]], must_end: bool, is_native: bool
) -> None:
    tries = DeviceTries(V)
    built = [TokenTrie.from_sequences({str(m): m for m in of}) for of in sets]
    options: Any = {"end_tokens": [END]} if must_end else {"on_complete": "release"}
    roots = torch.tensor([tries.add(trie, **options) for trie in built])
    if not is_native:
        tries._host = None
    found = tries.beam(model, roots, beam_width=40)
    for row, of in enumerate(sets):
        written = [(*member, END) if must_end else member for member in of]
        expected = sorted(((logprob(member), member) for member in written), reverse=True)
        there = found.logprobs[row].isfinite()
        assert there.tolist() == sorted(there.tolist(), reverse=True)
        got = [tuple(t for t in beam.tolist() if t >= 0) for beam in found.tokens[row][there]]
        assert got == [member for _, member in expected]
        assert found.logprobs[row][there].tolist() == pytest.approx([p for p, _ in expected], abs=1e-4)
        assert found.tokens[row][~there].eq(-1).all()
        assert found.nodes[row][~there].eq(FREE).all()


@pytest.mark.parametrize("width", [1, 3])
def test_narrow_beams_are_members_each_once(width: int) -> None:
    tries = DeviceTries(V)
    of = {(a, b, a) for a in range(3, V) for b in range(3, V)}
    root = tries.add(TokenTrie.from_sequences({str(m): m for m in of}), end_tokens=[END])
    found = tries.beam(model, torch.tensor([root, root]), beam_width=width)
    for row in range(2):
        got = [tuple(beam.tolist()) for beam in found.tokens[row]]
        assert len(set(got)) == width
        assert all(tokens[:3] in of and tokens[3] == END for tokens in got)
        assert found.logprobs[row].tolist() == pytest.approx([logprob(tokens) for tokens in got], abs=1e-4)


def test_a_beam_that_is_not_complete_in_time_is_lost() -> None:
    tries = DeviceTries(V)
    root = tries.add(TokenTrie.from_sequences({"A": [3], "B": [4, 5, 6]}), on_complete="release")
    found = tries.beam(model, torch.tensor([root]), beam_width=2, max_tokens=2)
    assert found.tokens.tolist() == [[[3, -1], [-1, -1]]]
    assert found.logprobs.isfinite().tolist() == [[True, False]]


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("options", [{"end_tokens": [END]}, {"on_complete": "release"}], ids=["end", "release"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_beam_whose_logits_are_no_distribution_is_lost(value: str, options: Any, is_native: bool) -> None:
    tries = DeviceTries(V)
    root = tries.add(TokenTrie.from_sequences({"A": [3, 4], "B": [5, 6], "C": [5, 7]}), **options)
    if not is_native:
        tries._host = None

    def broken(where: int) -> Any:
        """Return a model that is broken behind a token, or behind whatever there is."""

        def logits_of(tokens: Any, parents: Any) -> Any:
            logits = model(tokens, parents)
            is_there = (tokens == where).any(2) if where else torch.ones(tokens.shape[:2], dtype=torch.bool)
            return logits.masked_fill(is_there[:, :, None], float(value))

        return logits_of

    lost = tries.beam(broken(0), torch.tensor([root, root]), beam_width=2)
    assert lost.tokens.eq(-1).all()
    assert lost.logprobs.eq(-torch.inf).all()
    assert lost.nodes.eq(FREE).all()
    found = tries.beam(broken(3), torch.tensor([root]), beam_width=5)
    there = found.logprobs[0].isfinite()
    assert sorted(beam[:2] for beam in found.tokens[0][there].tolist()) == [[5, 6], [5, 7]]
    assert found.tokens[0][~there].eq(-1).all()
    assert found.logprobs[0][~there].eq(-torch.inf).all()


@pytest.mark.parametrize("is_native", [True, False])
def test_a_row_that_was_left_nothing_gets_back_what_is_allowed(
    is_native: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tries = DeviceTries(V)
    root = tries.add(TokenTrie.from_sequences({"A": [3, 4], "B": [5, 6], "C": [5, 7]}), end_tokens=[END])
    if not is_native:
        tries._host = None

    def cut(*out: int) -> Any:
        return lambda tokens, parents: model(tokens, parents).index_fill(2, torch.tensor(out), -torch.inf)

    with caplog.at_level(logging.WARNING, "token_trie.torch"):
        found = tries.beam(cut(3), torch.tensor([root]), beam_width=5)
        assert sorted(beam[:2] for beam in found.tokens[0].tolist() if beam[0] > 0) == [[5, 6], [5, 7]]
        assert not caplog.text, "what is improbable is not found, as long as there is anything else"
        found = tries.beam(cut(3, 5, END), torch.tensor([root]), beam_width=5)
    assert sorted(beam for beam in found.tokens[0].tolist() if beam[0] > 0) == [[3, 4, END], [5, 6, END], [5, 7, END]]
    assert "put back with equal probabilities" in caplog.text
    only = tries.beam(cut(3, 4, 5, 6, 7, END), torch.tensor([root]), beam_width=3)
    assert only.logprobs[0].exp().tolist() == pytest.approx([0.5, 0.25, 0.25])
    assert math.isclose(float(only.logprobs.exp().sum()), 1, rel_tol=1e-5)


def test_parents_name_the_beams_that_go_on() -> None:
    tries = DeviceTries(V)
    root = tries.add(TokenTrie.from_sequences({str(t): [t, 3, t] for t in range(3, V)}), on_complete="release")
    before: list[Any] = []

    def watched(tokens: Any, parents: Any) -> Any:
        if before:
            chosen = before[-1].gather(1, parents[:, :, None].expand(-1, -1, before[-1].shape[2]))
            assert torch.equal(chosen, tokens[:, :, :-1])
        before.append(tokens)
        return model(tokens, parents)

    tries.beam(watched, torch.tensor([root, root]), beam_width=3)
    assert [tuple(tokens.shape) for tokens in before] == [(2, 1, 0), (2, 3, 1), (2, 3, 2)]


@pytest.mark.parametrize("options", [{"end_tokens": [END]}, {"on_complete": "release"}], ids=["end", "release"])
@pytest.mark.parametrize("vocab_size", [V, 262_144])
def test_a_model_that_embeds_its_tokens_goes_on_beside_ended_and_lost_beams(vocab_size: int, options: Any) -> None:
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(vocab_size, 2).requires_grad_(False)
    head = torch.nn.Linear(2, vocab_size).requires_grad_(False)

    def embedded(tokens: Any, parents: Any) -> Any:
        return head(embedding(tokens).sum(2))

    def alone(member: list[int]) -> float:
        rows = [torch.log_softmax(embedded(torch.tensor([[member[:i]]]).long(), None)[0, 0], -1) for i in range(9)]
        return sum(float(rows[i][token]) for i, token in enumerate(member))

    tries = DeviceTries(vocab_size)
    of = [[3], [4, 5], [4, 6, 7, 8, 9]]
    root = tries.add(TokenTrie.from_sequences({str(member): member for member in of}), **options)
    found = tries.beam(embedded, torch.tensor([root]), beam_width=8)
    there = found.logprobs[0].isfinite()
    got = [[token for token in beam if token >= 0] for beam in found.tokens[0][there].tolist()]
    assert sorted(member[: len(member) - ("end_tokens" in options)] for member in got) == of
    assert found.logprobs[0][there].tolist() == pytest.approx([alone(member) for member in got], abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 0}, "beam_width: 0"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens: 0"),
        ({"beam_width": 2, "roots": torch.tensor([], dtype=torch.int64)}, "roots: none"),
        (
            {"beam_width": 2, "roots": torch.tensor([0.5])},
            "roots must be int64 .*, not torch.float32",
        ),
        ({"beam_width": 2, "roots": [1]}, "roots must be a torch.Tensor, not list"),
        ({"beam_width": 2, "logits_of": lambda *_: [0.0]}, "logits_of must be a torch.Tensor, not list"),
        (
            {"beam_width": 2, "logits_of": lambda *_: torch.zeros(1, 1, V - 1)},
            r"logits_of must .*, not \(1, 1, 9\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    tries = DeviceTries(V)
    root = tries.add(TokenTrie.from_sequences({"A": [3, 4]}), end_tokens=[END])
    with pytest.raises(ArgumentError, match=message):
        tries.beam(**{"logits_of": model, "roots": torch.tensor([root]), **options})
