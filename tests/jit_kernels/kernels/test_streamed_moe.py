"""Routed experts for few rows on the device, in both forms of weights."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from jit_kernels.expert_weights import Fp4Experts, Fp8Experts
from jit_kernels.streamed_moe import cuda_backend, reference, streamed_moe, triton_backend
from tests.jit_kernels.kernels.experts import chosen_experts, fp4_experts, fp8_experts
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

LIMIT = 1.5
# Inner activations are rounded to bfloat16 from sums in another order.
BOUNDS = Bounds(atol=2e-2, rtol=2e-2, cosine=0.9999)
CASES = with_large(
    [(1, 3, 2, 8), (9, 2, 1, 8), (17, 2, 1, 16)],
    [
        *((1, 40, 6, 8), (1, 40, 6, 16), (17, 40, 6, 8), (64, 40, 6, 8), (64, 40, 6, 16)),
        *((130, 40, 6, 32), (300, 40, 6, 64)),
    ],
)
BACKENDS = pytest.mark.parametrize("backend", with_large([triton_backend], [cuda_backend]))
FORMS = [fp4_experts, fp8_experts]
Form = Callable[[int, int, int], Fp4Experts | Fp8Experts]
WIDTH, INNER = with_large([(256, 128)], [(4096, 2048)])[-1]


def run(
    op: Callable[..., torch.Tensor],
    x: torch.Tensor,
    chosen: tuple[torch.Tensor, torch.Tensor],
    parts: Fp4Experts | Fp8Experts,
    size: int,
    plus: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run one implementation with float32 results."""
    return op(x, *chosen, parts, LIMIT, lambda: plus, torch.float32, size)


@BACKENDS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "experts", "top_k", "size"), CASES)
def test_each_row_gets_the_sum_of_its_experts(
    backend: ModuleType, rows: int, experts: int, top_k: int, size: int, form: Form
) -> None:
    x, parts = torch.randn(rows, WIDTH).bfloat16(), form(experts, WIDTH, INNER)
    chosen, plus = chosen_experts(rows, experts, top_k), torch.randn(rows, WIDTH)

    got = run(backend.streamed_moe, x, chosen, parts, size, plus)

    assert_close(got, run(reference.streamed_moe, x, chosen, parts, size, plus), BOUNDS)


@BACKENDS
@pytest.mark.parametrize("form", FORMS)
def test_all_rows_may_want_one_expert_and_some_are_elsewhere(
    backend: ModuleType, form: Form
) -> None:
    x, parts = torch.randn(10, WIDTH).bfloat16(), form(3, WIDTH, INNER)
    experts = torch.tensor([[2, 7]]).expand(10, 2)

    chosen = (experts, torch.rand(10, 2))
    got = run(backend.streamed_moe, x, chosen, parts, 8)

    assert_close(got, run(reference.streamed_moe, x, chosen, parts, 8), BOUNDS)


@BACKENDS
def test_nobody_at_home_gives_zero(backend: ModuleType) -> None:
    x, parts = torch.randn(3, WIDTH).bfloat16(), fp4_experts(2, WIDTH, INNER)

    got = run(backend.streamed_moe, x, (torch.full((3, 2), -1), torch.rand(3, 2)), parts, 8)

    assert not got.any()


def test_pairs_that_all_have_an_output_need_no_places() -> None:
    outputs, weights, plus = torch.randn(6, WIDTH), torch.rand(2, 3), torch.randn(2, WIDTH)
    rest = (weights, plus, torch.float32)
    places = torch.arange(6, dtype=torch.int32)

    got = triton_backend.weighted_sum(outputs, None, *rest, in_order=False)

    assert_same_bits(got, triton_backend.weighted_sum(outputs, places, *rest, in_order=False))


@pytest.mark.gpu
@BACKENDS
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [8, 16, 64])
def test_a_row_has_the_same_bits_in_any_company_of_one_size(
    backend: ModuleType, size: int, form: Form
) -> None:
    x, parts = torch.randn(70, WIDTH).bfloat16(), form(16, WIDTH, INNER)
    experts, weights = chosen_experts(70, 16, 6)
    whole = run(backend.streamed_moe, x, (experts, weights), parts, size)

    for rows in (slice(0, 1), slice(3, 9), slice(20, 70)):
        part = run(backend.streamed_moe, x[rows], (experts[rows], weights[rows]), parts, size)
        assert_same_bits(part, whole[rows], what=f"rows {rows}")


@pytest.fixture(params=[0, 2**30], ids=["stream", "units"])
def each_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all blocks of eight rows to one of the two kernels in CUDA C++."""
    monkeypatch.setattr(cuda_backend, "UNIT_BLOCKS", request.param)


@pytest.mark.gpu
@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize(
    ("rows", "experts", "top_k", "width", "inner"),
    [
        *((1, 40, 6, 4096, 2048), (2, 40, 6, 4096, 2048), (4, 40, 6, 4096, 2048)),
        *((16, 64, 6, 4096, 2048), (64, 40, 6, 4096, 2048), (33, 2, 1, 4096, 2048)),
        *((3, 5, 2, 1024, 1024), (20, 12, 3, 2048, 4096), (200, 3, 3, 2048, 1024)),
        *((1, 8, 6, 4096, 512), (16, 12, 3, 1536, 512)),
    ],
)
def test_both_kernels_for_blocks_of_eight_give_what_the_reference_does(
    rows: int, experts: int, top_k: int, width: int, inner: int
) -> None:
    x, parts = torch.randn(rows, width).bfloat16(), fp4_experts(experts, width, inner)
    chosen, plus = chosen_experts(rows, experts, top_k), torch.randn(rows, width)
    if rows > 2:
        # A pair is elsewhere, and the last row altogether.
        chosen[0][rows // 2, 0], chosen[0][-1] = experts, -1

    got = run(cuda_backend.streamed_moe, x, chosen, parts, 8, plus)

    assert_close(got, run(reference.streamed_moe, x, chosen, parts, 8, plus), BOUNDS)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3, 16, 70, 200])
def test_both_kernels_for_blocks_of_eight_give_the_same_bits(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, parts = torch.randn(rows, WIDTH).bfloat16(), fp4_experts(24, WIDTH, INNER)
    chosen = chosen_experts(rows, 24, 6)

    results: list[torch.Tensor] = []
    for most in (0, 2**30):
        monkeypatch.setattr(cuda_backend, "UNIT_BLOCKS", most)
        results.append(run(cuda_backend.streamed_moe, x, chosen, parts, 8))

    assert_same_bits(*results)


@pytest.mark.gpu
@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "ids", [(3, 3, 0, 3), (-1, 2, 12, 5), (2**31 - 1, -(2**31), 1, 0), (-1, 12, 13, -7)]
)
def test_a_single_row_may_want_an_expert_twice_and_some_that_are_elsewhere(
    ids: tuple[int, ...], dtype: torch.dtype
) -> None:
    x, parts = torch.randn(1, WIDTH).bfloat16(), fp4_experts(12, WIDTH, INNER)
    chosen, plus = (
        (torch.tensor([ids], dtype=dtype), torch.rand(1, len(ids))),
        torch.randn(1, WIDTH),
    )

    got = run(cuda_backend.streamed_moe, x, chosen, parts, 8, plus)

    assert_close(got, run(reference.streamed_moe, x, chosen, parts, 8, plus), BOUNDS)


@pytest.mark.gpu
@pytest.mark.usefixtures("each_kernel")
@pytest.mark.parametrize(("stride", "first"), [(WIDTH + 8, 8), (WIDTH + 8, 4), (WIDTH + 1, 0)])
def test_rows_may_lie_apart_and_begin_anywhere(stride: int, first: int) -> None:
    whole, parts = torch.randn(5, stride).bfloat16(), fp4_experts(12, WIDTH, INNER)
    x, chosen = whole[:, first : first + WIDTH], chosen_experts(5, 12, 6)

    got = run(cuda_backend.streamed_moe, x, chosen, parts, 8)

    assert_same_bits(got, run(cuda_backend.streamed_moe, x.contiguous(), chosen, parts, 8))


@pytest.mark.gpu
@pytest.mark.usefixtures("each_kernel")
def test_calls_that_follow_each_other_do_not_disturb_each_other() -> None:
    x, parts = torch.randn(40, 1, WIDTH).bfloat16(), fp4_experts(64, WIDTH, INNER)
    chosen = [chosen_experts(1, 64, 6) for _ in x]
    alone: list[torch.Tensor] = []
    for row, choice in zip(x, chosen, strict=True):
        alone.append(run(cuda_backend.streamed_moe, row, choice, parts, 8))
        torch.cuda.synchronize()

    together = [
        run(cuda_backend.streamed_moe, row, choice, parts, 8)
        for row, choice in zip(x, chosen, strict=True)
    ]

    assert_same_bits(torch.cat(together), torch.cat(alone))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16])
def test_a_graph_follows_the_choice_of_experts(rows: int) -> None:
    x, parts = torch.randn(rows, WIDTH).bfloat16(), fp4_experts(32, WIDTH, INNER)
    experts, weights = chosen_experts(rows, 32, 6)
    experts = experts.contiguous()
    streamed_moe(x, experts, weights, parts, limit=LIMIT)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = streamed_moe(x, experts, weights, parts, limit=LIMIT)

    for _ in range(3):
        experts.copy_(chosen_experts(rows, 32, 6)[0])
        graph.replay()
        assert_same_bits(got, streamed_moe(x, experts, weights, parts, limit=LIMIT))
