"""The matrix kernels compiled for Hopper in the sizes of V4-Flash: they fit, and nothing spills."""

import importlib.util
import os
from functools import partial

import pytest
import torch

from jit_kernels.expert_weights import Fp4Experts, Fp8Experts

EXPERTS, WIDTH, INNER, TOP_K = 256, 4096, 2048, 6
SHARED_BYTES = 227 * 1024
GRID_LIMIT = 65_535

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter runs"),
]


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return a tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture(autouse=True)
def _as_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Sort pairs in Triton, as the reference needs memory, and launch kernels through Triton."""
    from jit_kernels.expert_blocks.triton_backend import expert_blocks
    from jit_kernels.grouped_moe import triton_run as grouped
    from jit_kernels.streamed_moe import triton_backend as streamed
    from jit_kernels.triton_launch import PreparedKernel

    for module in (grouped, streamed):
        monkeypatch.setattr(module, "expert_blocks", expert_blocks)
    monkeypatch.setattr(PreparedKernel, "__getitem__", lambda self, grid: self.kernel[grid])


def codes(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return fp8 blocks, or rows if there is one size before the channels."""
    *outer, rows, depth = shape
    blocks = (*outer, rows // 128, depth // 128)
    return empty(*shape, dtype=torch.float8_e4m3fn), empty(*blocks, dtype=torch.float32)


def rows_of(tokens: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quantised rows, their scales column by column."""
    scales = empty(depth // 128, -(-tokens // 4) * 4, dtype=torch.float32).T[:tokens]
    return empty(tokens, depth, dtype=torch.float8_e4m3fn), scales


def assert_fits(found: list[object]) -> None:
    """Fail for a launch that spills, or asks for more than a multiprocessor has."""
    from tests.testing.hopper_code import Launch

    assert found
    for launch in found:
        assert isinstance(launch, Launch)
        print(launch)
        assert launch.stack_bytes == 0, launch
        assert launch.shared_bytes <= SHARED_BYTES, launch
        assert max(launch.grid[1:], default=1) <= GRID_LIMIT, launch


def fp8_experts() -> Fp8Experts:
    """Return the experts of a layer in fp8."""
    return Fp8Experts(*codes(EXPERTS, 2 * INNER, WIDTH), *codes(EXPERTS, WIDTH, INNER))


def fp4_experts() -> Fp4Experts:
    """Return the experts of a layer in fp4."""

    def weight(rows: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = empty(EXPERTS, rows, depth // 4, dtype=torch.int16)
        return words, empty(EXPERTS, rows, depth // 32, dtype=torch.uint8)

    return Fp4Experts(*weight(2 * INNER, WIDTH), *weight(WIDTH, INNER))


def chosen(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return experts and weights of a batch."""
    return empty(tokens, TOP_K, dtype=torch.int64), empty(tokens, TOP_K, dtype=torch.float32)


@pytest.mark.parametrize("form", ["fp4", "fp8"])
@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_streamed_experts(size: int, form: str) -> None:
    from jit_kernels.streamed_moe import triton_backend
    from tests.testing.hopper_code import launches

    parts = fp4_experts() if form == "fp4" else fp8_experts()
    with launches() as found:
        for tokens in (1, 256):
            x, plus = empty(tokens, WIDTH), partial(empty, tokens, WIDTH)
            triton_backend.streamed_moe(x, *chosen(tokens), parts, 10.0, plus, torch.bfloat16, size)

    assert_fits([*found])


def test_grouped_experts() -> None:
    from jit_kernels.grouped_moe.triton_gate import gate_rows
    from jit_kernels.grouped_moe.triton_run import run
    from tests.jit_kernels.kernels.test_grouped_moe import product
    from tests.testing.hopper_code import launches

    fp8 = fp8_experts()
    with launches() as found:
        x = rows_of(8192, WIDTH)
        run(
            x,
            *chosen(8192),
            fp8,
            limit=10.0,
            plus=None,
            out_dtype=torch.bfloat16,
            product=product,
            gate=gate_rows,
            first=400,
        )

    assert_fits([*found])


@pytest.mark.parametrize("heads", [16, 128])
def test_attention_over_latent_records(heads: int) -> None:
    from jit_kernels.latent_heads import LatentWeights
    from jit_kernels.latent_heads.triton_backend import absorbed_heads, latent_values
    from jit_kernels.paged_gqa import PagedRows
    from jit_kernels.paged_latent import LatentPlan
    from jit_kernels.paged_latent.triton_backend import paged_latent
    from tests.testing.hopper_code import launches

    numbers = partial(empty, dtype=torch.float32)
    keys, values = empty(heads, 256, 512).split([128, 128], 1)
    weights, records = LatentWeights(keys, numbers(512), 1e-6), empty(9, 256, 576)
    with launches() as found:
        for tokens in (1, 64, 2048):
            q, rotation = numbers(tokens, heads, 192), numbers(tokens, 2, 64)
            for invariant in (False, True):
                absorbed = absorbed_heads(
                    *(q, numbers(tokens, 576), weights, rotation, records),
                    *(empty(tokens, dtype=torch.int64), False, invariant),
                )
                rows = PagedRows(
                    empty(1, 8, dtype=torch.int32), empty(1, dtype=torch.int32), None, tokens
                )
                plan = None if invariant else LatentPlan()
                read = paged_latent(absorbed, records, rows, 512, 0.1, plan)
                latent_values(read, values, invariant)

    assert_fits([*found])
