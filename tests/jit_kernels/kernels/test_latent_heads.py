"""Records stored, queries absorbed and values made on the device."""

import pytest
import torch
from torch import Tensor

from jit_kernels.latent_heads import LatentNorms, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

# heads, channels of a query, turned ones, of latents, of values, of the latent of queries
GEOMETRIES = with_large(
    [(3, 24, 16, 40, 20, 0), (2, 16, 8, 32, 16, 24)],
    [(16, 128, 64, 512, 128, 0), (128, 128, 64, 512, 128, 1536)],
)
TOKENS = with_large([5], [1, 16, 17, 300])
BF16 = Bounds(atol=1e-3, rtol=2.0**-7)


def rotation(tokens: int, turned: int, *, halves: bool) -> Tensor:
    """Return random rotations, as `rope_halves` or `rope` takes them."""
    angle = torch.randn(tokens, turned // 2)
    if halves:
        return torch.stack((angle.cos(), angle.sin()), 1)
    angle = angle.repeat_interleave(2, 1)
    sign = torch.tensor([-1.0, 1.0]).repeat(turned // 2)
    return torch.stack((angle.cos(), angle.sin() * sign), 1)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_what_is_stored_is_that_of_the_reference(geometry: tuple[int, ...], halves: bool) -> None:
    _, _, turned, latent, _, rank = geometry
    made = torch.randn(5, max(rank, 7) + latent + turned)
    made[3, -1] = torch.inf
    query = torch.randn(rank) if rank else None
    norms = LatentNorms(torch.randn(latent), query, 1e-6)
    turn, slots = rotation(5, turned, halves=halves), torch.tensor([9, 3, 16, 30, 5])
    found: list[tuple[Tensor | None, Tensor]] = []
    for backend in (triton_backend, reference):
        records = torch.full((2, 16, latent + turned), 7.0, dtype=torch.bfloat16)
        latents = backend.store_latents(made.clone(), norms, turn, records, slots, halves)
        found.append((latents, records))

    (got_query, got), (want_query, want) = found
    assert_close(got, want, BF16)
    assert bool(got.isfinite().all())
    if want_query is None:
        assert got_query is None
    else:
        assert got_query is not None
        assert_close(got_query, want_query, BF16)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_products_are_those_of_the_reference(geometry: tuple[int, ...], tokens: int) -> None:
    heads, plain, turned, latent, value, rank = geometry
    halves = rank > 0
    weight = (torch.randn(heads, plain + value, latent) * 0.1).to(torch.bfloat16)
    keys, values = weight.split([plain, value], 1)
    q = torch.randn(tokens, heads * (plain + turned) + 11)[:, :-11].unflatten(1, (heads, -1))
    read = torch.randn(tokens, heads, latent).to(torch.bfloat16)
    turn = rotation(tokens, turned, halves=halves)
    bounds = Bounds(atol=2e-2, rtol=2.0**-7)

    for invariant in (False, True):
        got, want = (
            backend.absorbed_queries(q, keys, turn, halves, invariant)
            for backend in (triton_backend, reference)
        )
        assert_close(got, want, bounds, what="queries")
        got, want = (
            backend.latent_values(read, values, invariant)
            for backend in (triton_backend, reference)
        )
        assert_close(got, want, bounds, what="values")


def test_an_invariant_token_has_the_same_bits_in_any_company() -> None:
    weight = torch.randn(2, 48, 64).to(torch.bfloat16)
    q, read = torch.randn(70, 2, 40), torch.randn(70, 2, 64).to(torch.bfloat16)
    turn = rotation(70, 8, halves=False)

    def made(some: slice) -> tuple[Tensor, Tensor]:
        absorbed = triton_backend.absorbed_queries(
            q[some], weight[:, :32], turn[some].contiguous(), halves=False, invariant=True
        )
        mine = read[some].contiguous()
        return absorbed, triton_backend.latent_values(mine, weight[:, 32:], invariant=True)

    for alone, beside in zip(made(slice(66, 67)), made(slice(0, 70)), strict=True):
        assert_same_bits(alone, beside[66:67])
