"""Arrays on a device: the same numbers, in the same shapes, in one allocation."""

import numpy as np
import pytest
import torch

from layers.staging import Fetched, room, stage, stage_together

CPU = torch.device("cpu")


def arrays() -> dict[str, np.ndarray]:
    """Arrays of odd sizes, one of them empty."""
    draw = np.random.default_rng(3)
    return {
        "ids": draw.integers(1 << 40, size=7),
        "none": np.zeros(0, dtype=np.int64),
        "table": draw.integers(99, size=(3, 5)).astype(np.int32),
        "empty_rows": np.zeros((0, 4), dtype=np.int32),
        "last": np.array([-1], dtype=np.int64),
    }


def check(device: torch.device) -> None:
    given = arrays()

    there = stage_together(given, device)

    assert list(there) == list(given)
    for name, array in given.items():
        tensor = there[name]
        assert tensor.device.type == device.type
        assert (tensor.shape, str(tensor.dtype)) == (array.shape, f"torch.{array.dtype}")
        assert tensor.tolist() == array.tolist(), name
        assert tensor.data_ptr() % 64 == there["ids"].data_ptr() % 64 or not tensor.numel()
    storages = {tensor.untyped_storage().data_ptr() for tensor in there.values()}
    assert len(storages) == 1


def test_arrays_travel_together() -> None:
    check(CPU)


def test_an_array_that_is_not_contiguous_arrives_as_it_reads() -> None:
    array = np.arange(12).reshape(3, 4)[:, ::2]

    assert stage(array, CPU).tolist() == array.tolist()


@pytest.mark.gpu
def test_on_the_gpu_tensors_come_back_as_they_were_without_being_waited_for() -> None:
    device = torch.device("cuda")
    numbers = torch.arange(5, device=device)
    host = room((2, 3), torch.int32, device)
    host.fill_(7)
    torch.cuda.set_sync_debug_mode("error")
    try:
        there = host.to(device, non_blocking=True)
        fetched = Fetched(numbers, there.sum(1))
        numbers.zero_()
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert [part.tolist() for part in fetched.read()] == [[0, 1, 2, 3, 4], [21, 21]]


def test_what_is_fetched_is_as_it_was_when_that_began() -> None:
    numbers = torch.arange(3)
    fetched = Fetched(numbers, numbers + 1)
    numbers.zero_()

    assert [part.tolist() for part in fetched.read()] == [[0, 1, 2], [1, 2, 3]]
    assert [part.tolist() for part in fetched.read()] == [[0, 1, 2], [1, 2, 3]]


@pytest.mark.gpu
def test_on_the_gpu_arrays_travel_without_being_waited_for() -> None:
    torch.cuda.set_sync_debug_mode("error")
    try:
        there = stage_together(arrays(), torch.device("cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert {name: tensor.tolist() for name, tensor in there.items()} == {
        name: array.tolist() for name, array in arrays().items()
    }
