"""Holds an op to the promise that a row's bits do not depend on its company."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.testing.compare import assert_same_bits


def assert_rows_independent(op: Callable[..., Tensor], tensors: Sequence[Tensor]) -> None:
    """Fail unless `op(*tensors)` gives each row the same bits alone, in part, and shuffled.

    tensors  arguments whose first axis is the rows; they are copied before each call
    """
    rows = tensors[0].shape[0]
    whole = op(*[tensor.clone() for tensor in tensors])
    shuffled = torch.randperm(rows)
    picks = [shuffled, torch.arange(rows).flip(0)]
    for count in (1, 2, 3, 5, 16, 17, 31):
        picks += [torch.arange(first, first + count) for first in (0, 3) if first + count <= rows]
    for pick in picks:
        part = op(*[tensor[pick].clone() for tensor in tensors])
        assert_same_bits(part, whole[pick], what=f"rows {pick.tolist()[:4]}.. of {rows}")
