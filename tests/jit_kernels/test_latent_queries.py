"""Queries through the weights of keys."""

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.latent_queries import latent_queries
from jit_kernels.latent_queries.reference import latent_queries as in_torch
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent

pytestmark = pytest.mark.usefixtures("device")

# heads, channels of a query, channels of a latent
GEOMETRIES = [(3, 24, 40), (2, 33, 129), (5, 128, 64), (1, 1, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_each_head_has_a_product_of_its_own(
    geometry: tuple[int, int, int], dtype: torch.dtype
) -> None:
    heads, depth, columns = geometry
    # Both are parts of wider rows, as they are in a network.
    keys = torch.randn(heads, depth + 3, columns).to(dtype)[:, :depth]
    q = torch.randn(39, heads, depth + 2)[..., :depth]

    got = latent_queries(q, keys)

    want = torch.einsum("bhn,hnc->bhc", q.double(), keys.double()).float()
    assert_close(got, want, Bounds(atol=1e-4))
    assert_close(in_torch(q, keys), want, Bounds(atol=1e-4))


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_token_has_the_same_bits_in_any_company(geometry: tuple[int, int, int]) -> None:
    heads, depth, columns = geometry
    keys, q = torch.randn(heads, depth, columns), torch.randn(40, heads, depth)

    assert_rows_independent(lambda q: latent_queries(q, keys), [q])
    assert_rows_independent(lambda q: in_torch(q, keys), [q])


@pytest.mark.parametrize(
    ("q", "keys", "message"),
    [
        (torch.zeros(2, 3, 4), torch.zeros(3, 5, 6), "q has shape"),
        (torch.zeros(2, 3, 4), torch.zeros(3, 6, 4).transpose(1, 2), "strides 1 and 4"),
    ],
)
def test_what_does_not_fit_is_refused(q: Tensor, keys: Tensor, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        latent_queries(q, keys)
