"""What the library of rows says of tensors before it takes them; its kernels are tested by op."""

import pytest
import torch

from jit_kernels.cuda_rows import is_aligned, is_bf16


def test_rows_that_begin_at_whole_sixteen_bytes_are_aligned() -> None:
    rows = torch.zeros(4, 24)

    assert is_aligned(rows)
    assert is_aligned(rows[:, 4:])
    assert is_aligned(rows[0])


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(4, 24)[:, 1:],
        torch.zeros(4, 23),
        torch.zeros(24, 4).T,
        torch.zeros(4, 20, dtype=torch.bfloat16),
    ],
)
def test_other_rows_are_not(rows: torch.Tensor) -> None:
    assert not is_aligned(rows)


def test_numbers_are_of_one_type_or_the_other() -> None:
    assert is_bf16(torch.zeros(1, dtype=torch.bfloat16))
    assert not is_bf16(torch.zeros(1))
