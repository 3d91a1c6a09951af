"""Records stored, queries absorbed and values made on the device."""

from typing import Any

import pytest
import torch
from torch import Tensor

from jit_kernels.latent_heads import LatentWeights, reference, triton_backend
from jit_kernels.latent_records import decode_latents, latent_record_bytes
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

PACKED = with_large([(2, 16, 16, 384, 16, False)], [(128, 128, 64, 512, 128, True)])
# heads, channels of a query, turned ones, of latents, of values; halves turn
GEOMETRIES = with_large(
    [(3, 24, 16, 40, 20, False), (2, 16, 8, 32, 16, True)],
    [(16, 128, 64, 512, 128, False), (128, 128, 64, 512, 128, False)],
)
TOKENS = with_large([5], [1, 16, 17, 300])


def rotation(tokens: int, turned: int, *, halves: bool) -> Tensor:
    """Return random rotations, as `rope_halves` or `rope` takes them."""
    angle = torch.randn(tokens, turned // 2)
    if halves:
        return torch.stack((angle.cos(), angle.sin()), 1)
    angle = angle.repeat_interleave(2, 1)
    sign = torch.tensor([-1.0, 1.0]).repeat(turned // 2)
    return torch.stack((angle.cos(), angle.sin() * sign), 1)


class Case:
    """Random heads and records of tokens; one number is not finite."""

    def __init__(self, tokens: int, geometry: tuple[int, int, int, int, int, bool]) -> None:
        self.heads, plain, turned, latent, value, self.halves = geometry
        weight = (torch.randn(self.heads, plain + value, latent) * 0.1).to(torch.bfloat16)
        keys, self.values = weight.split([plain, value], 1)
        self.weights = LatentWeights(keys, torch.randn(latent), 1e-6)
        made = torch.randn(tokens, self.heads * (plain + turned) + latent + turned)
        q, self.made = made.split([made.shape[1] - latent - turned, latent + turned], 1)
        self.q = q.unflatten(1, (self.heads, -1))
        self.made[tokens // 2, -1] = torch.inf
        self.read = torch.randn(tokens, self.heads, latent).to(torch.bfloat16)
        self.rotation = rotation(tokens, turned, halves=self.halves)
        self.slots = torch.randperm(2 * tokens)[:tokens] + 3

    def by(
        self, backend: Any, some: slice, *, invariant: bool, packed: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a backend makes of some tokens: queries, values, and records in pages."""
        q, made, tokens = self.q[some], self.made[some], len(self.q)
        width, turned = made.shape[1], self.q.shape[2] - self.weights.keys.shape[1]
        if packed:
            width = latent_record_bytes(width, record_format="fp8", rope_channels=turned)
        dtype = torch.uint8 if packed else torch.bfloat16
        records = torch.full((2, 3 + tokens, width), 7, dtype=dtype)
        turn, slots = self.rotation[some].contiguous(), self.slots[some].contiguous()
        heads = backend.absorbed_heads(
            q, made, self.weights, turn, records, slots, self.halves, invariant
        )
        read = self.read[some].contiguous()
        return heads, backend.latent_values(read, self.values, invariant), records


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_heads_values_and_records_are_those_of_the_reference(
    geometry: tuple[int, int, int, int, int, bool], tokens: int
) -> None:
    made, every = Case(tokens, geometry), slice(0, tokens)
    *want, want_records = made.by(reference, every, invariant=True)

    for invariant in (False, True):
        *got, records = made.by(triton_backend, every, invariant=invariant)
        for name, one, other in zip(("queries", "values"), got, want, strict=True):
            finite = other.isfinite()
            assert_close(one[finite], other[finite], Bounds(atol=2e-2, rtol=2.0**-7), what=name)
        assert_close(records, want_records, Bounds(atol=1e-3, rtol=2.0**-7), what="records")
        assert bool(records.isfinite().all())


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("geometry", PACKED)
def test_packed_records_are_those_of_the_reference(
    geometry: tuple[int, int, int, int, int, bool], tokens: int
) -> None:
    made, every = Case(tokens, geometry), slice(0, tokens)
    want_queries, _, want = made.by(reference, every, invariant=True, packed=True)

    queries, _, got = made.by(triton_backend, every, invariant=True, packed=True)

    finite = want_queries.isfinite()
    assert_close(queries[finite], want_queries[finite], Bounds(atol=2e-2, rtol=2.0**-7))
    # A number on the border between two codes may fall to either.
    assert float((got != want).float().mean()) < 2e-3
    _, _, turned, latent, _, _ = geometry
    untouched = torch.ones(got.shape[0] * got.shape[1], dtype=torch.bool)
    untouched[made.slots] = False
    assert bool((got.flatten(0, 1)[untouched] == 7).all())
    rows = [packed.flatten(0, 1)[made.slots].contiguous() for packed in (got, want)]
    numbers = [
        decode_latents(row, record_format="fp8", channels=latent + turned, rope_channels=turned)
        for row in rows
    ]
    assert bool(numbers[0].isfinite().all())
    assert_close(numbers[0], numbers[1], Bounds(atol=1e-3, rtol=2.0**-3, cosine=0.9999))


def test_an_invariant_token_has_the_same_bits_in_any_company() -> None:
    made = Case(20, (2, 32, 8, 64, 16, False))

    alone = made.by(triton_backend, slice(17, 18), invariant=True)
    beside = made.by(triton_backend, slice(0, 20), invariant=True)

    for one, other in zip(alone[:2], beside[:2], strict=True):
        assert_same_bits(one, other[17:18])
    slot = int(made.slots[17])
    assert_same_bits(*(records.flatten(0, 1)[slot] for records in (alone[2], beside[2])))
