"""Heads made, normed, turned and stored on the device."""

import pytest
import torch

from jit_kernels.gqa_heads import HeadWeights, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

GEOMETRIES = with_large([(4, 2, 8), (9, 3, 12)], [(32, 8, 128), (14, 2, 64), (8, 1, 192)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "biased", "normed"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_heads_are_those_of_the_reference(
    geometry: tuple[int, int, int], kind: str, dtype: torch.dtype
) -> None:
    heads, groups, width = geometry
    columns = (heads + 2 * groups) * width
    made, angle = torch.randn(5, columns), torch.randn(5, width // 2)
    rotation = torch.stack((angle.cos(), angle.sin()), 1)
    bias = torch.randn(columns) if kind == "biased" else None
    norms = (torch.randn(width), torch.randn(width)) if kind == "normed" else None
    weights, slots = HeadWeights(bias, norms, 1e-6), torch.tensor([9, 3, 16, 30, 5])
    found: list[tuple[torch.Tensor, ...]] = []
    for backend in (triton_backend, reference):
        keys, values = (torch.full((2, 16, groups, width), 7.0, dtype=dtype) for _ in range(2))
        args = (made.clone(), rotation, keys, values, slots, weights, dtype)
        found.append((backend.gqa_heads(*args), keys, values))

    bounds = Bounds(atol=1e-5, rtol=1e-5 if dtype == torch.float32 else 2.0**-7)
    for name, got, want in zip(("q", "keys", "values"), *found, strict=True):
        assert got.dtype == dtype
        assert_close(got, want, bounds, what=name)


def test_a_token_has_the_same_bits_in_any_company() -> None:
    made, angle = torch.randn(7, 64), torch.randn(7, 4)
    rotation = torch.stack((angle.cos(), angle.sin()), 1)
    weights = HeadWeights(None, (torch.randn(8), torch.randn(8)), 1e-6)

    def queries(some: slice) -> torch.Tensor:
        pages = torch.zeros(1, 16, 2, 8, dtype=torch.bfloat16)
        args = (made[some], rotation[some].contiguous(), pages, pages.clone())
        slots = torch.arange(16)[some].contiguous()
        return triton_backend.gqa_heads(*args, slots, weights, torch.bfloat16)

    assert_same_bits(queries(slice(3, 4)), queries(slice(0, 7))[3:4])
