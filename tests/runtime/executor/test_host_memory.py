"""What a network on the CPU takes is counted by its storage."""

from collections.abc import Iterator

import torch

from layers.parallel.shares import Shares
from layers.weights.part import part_of
from layers.weights.weight_target import WeightTarget
from runtime.executor.host_memory import free_host_bytes, total_host_bytes, weight_bytes


class Network:
    """Two views of one storage, and a rank's half of a weight."""

    def named_weights(self) -> Iterator[tuple[str, "torch.Tensor | WeightTarget | object"]]:
        """Yield them."""
        both = torch.zeros(4, 8)
        yield "up", both[:2]
        yield "down", both[2:]
        yield "head", part_of(torch.zeros(16, 4), Shares(1, 2).vocabulary(32), 4)


def test_storage_that_weights_share_counts_once_and_a_part_for_itself() -> None:
    network = Network()

    assert weight_bytes(network) == 4 * (4 * 8 + 16 * 4)  # pyright: ignore[reportArgumentType]


def test_a_host_has_more_memory_than_is_free() -> None:
    assert 0 < free_host_bytes() < total_host_bytes()
