"""Products of bfloat16 numbers, kept in float32."""

import pytest
import torch

from jit_kernels.bf16_linear import bf16_linear, new_weight
from jit_kernels.checks import ShapeError
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent


@pytest.mark.parametrize(("rows", "columns", "depth"), [(0, 5, 8), (1, 33, 96), (17, 9, 301)])
def test_the_product_is_exact_to_float32(rows: int, columns: int, depth: int) -> None:
    x, weight = torch.randn(rows, depth).bfloat16(), torch.randn(columns, depth).bfloat16()

    got = bf16_linear(x, weight)

    want = x.double() @ weight.double().T
    assert_close(got, want.float(), Bounds(atol=1e-4, rtol=1e-5))


def test_a_row_has_the_same_bits_in_any_company() -> None:
    weight = torch.randn(24, 72).bfloat16()

    assert_rows_independent(lambda x: bf16_linear(x, weight), [torch.randn(40, 72).bfloat16()])


def test_sizes_and_dtypes_that_do_not_fit_are_refused() -> None:
    x, weight = torch.zeros(2, 8).bfloat16(), torch.zeros(3, 8).bfloat16()

    with pytest.raises(ShapeError, match="x has shape"):
        bf16_linear(x[:, :7], weight)
    with pytest.raises(ShapeError, match=r"weight is torch\.float32"):
        bf16_linear(x, weight.float())


@pytest.mark.parametrize("invariant", [False, True])
def test_a_new_weight_is_zeros_that_are_noted(
    invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[tuple[object, ...]] = []
    monkeypatch.setattr("jit_kernels.bf16_linear.note", lambda *given: noted.append(given))

    weight = new_weight(3, 16, torch.device("cpu"), invariant=invariant)

    assert (weight.shape, weight.dtype) == ((3, 16), torch.bfloat16)
    assert not weight.any()
    assert noted == [("bf16_linear_invariant" if invariant else "bf16_linear", (3, 16), weight)]
