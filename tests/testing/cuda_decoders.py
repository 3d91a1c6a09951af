"""What networks of pages and windows promise on a GPU, in any family: weights, bits, graphs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from layers.models.contract import CudaNetwork, Network
from layers.weights.stacked import StackedWeight
from tests.testing.compare import assert_same_bits
from tests.testing.page_rig import PagedRow, PageRig
from tests.testing.window_rig import WindowRig, WindowRow

# Numbers in pages that nobody wrote: finite, as all that a GPU leaves there.
GARBAGE = 77.0


def words(count: int, vocab: int, seed: int = 1) -> list[int]:
    """Return random token ids."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(2, vocab, (count,), generator=draw).tolist()


def copy_weights(source: Network, made: Network) -> None:
    """Give a network the weights of another one: random numbers of devices differ."""
    numbers = dict(source.named_weights())
    for name, target in made.named_weights():
        number = numbers[name]
        if isinstance(target, StackedWeight) and isinstance(number, StackedWeight):
            target, number = target.storage, number.storage
        assert isinstance(target, Tensor)
        assert isinstance(number, Tensor)
        target.copy_(number)


def rig_of(made: Network) -> tuple[Any, Any]:
    """Return what drives a network, and the kind of its rows."""
    rig, row = (WindowRig, WindowRow) if made.cache.tree.window else (PageRig, PagedRow)
    return rig(made, pages=48, garbage=GARBAGE), row


def logits_of(
    made: CudaNetwork, prompt: list[int], other: list[int], device: torch.device
) -> list[Tensor]:
    """Return the logits of the last three tokens of a prompt, two of them decoded.

    other  a row beside it
    """
    (rig, new_row), count = rig_of(made), len(prompt) - 2
    row, beside = new_row(prompt[:count]), new_row(list(other))
    found = [rig.prefill(row, count + 1), rig.prefill(beside, 7)][:1]
    for token in prompt[count:]:
        row.tokens.append(token)
        beside.tokens.append(5)
        found.append(rig.decode([beside, row], device)[1])
    return found


def assert_bits_depend_on_the_prefix(
    made: CudaNetwork, prompt: list[int], others: list[list[int]], device: torch.device
) -> None:
    """Hold the last token's logits to the same bits in any chunk, company, and from the cache.

    prompt  300 tokens
    """
    rig, whole = PageRig(made, pages=48, garbage=GARBAGE), PagedRow(prompt)
    want = rig.prefill(whole, 2048)
    before = rig.prefill(PagedRow(prompt[:299]), 2048)

    for chunk in (64, 255, 257):
        assert_same_bits(rig.prefill(PagedRow(prompt), chunk), want, what=f"chunks of {chunk}")
    for at in (1, 256, 290):
        assert_same_bits(rig.prefill(rig.fork(whole, prompt, at), 100), want, what=f"from {at}")
    rows, mine = [PagedRow(list(tokens)) for tokens in others], rig.fork(whole, prompt, 290)
    rig.step([*((row, len(row.tokens) - 2) for row in rows), (mine, 298)])
    first, last = (rig.decode([*rows, mine], device)[-1] for _ in range(2))
    assert_same_bits(first, before, what="decoded")
    assert_same_bits(last, want, what="decoded after what was decoded")


def assert_graphs_give_the_bits_of_launches(
    made: CudaNetwork, prompts: list[list[int]], device: torch.device
) -> None:
    """Hold a graph of a decode step to the bits of plain launches, for later rows, too."""
    driven, new_row = rig_of(made)
    rows = [new_row(list(tokens)) for tokens in prompts]
    driven.step([(row, len(row.tokens) - 2) for row in rows])
    inputs = driven.inputs(rows, device)

    def step() -> Tensor:
        return made.decode(inputs, driven.pools)

    step()
    want = step().clone()
    graph, got = _captured(step)
    with torch.inference_mode():
        got.zero_()
    graph.replay()
    assert_same_bits(got, want)

    # The same graph for other rows and positions.
    for row in rows:
        row.done += 1
    later = driven.inputs(rows[::-1], device)
    for field in ("input_ids", "position", "page_table", "window"):
        getattr(inputs, field).copy_(getattr(later, field))
    graph.replay()
    assert_same_bits(got, step())


def _captured(step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Return a graph of a step that has run before, and where its result will be."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result
