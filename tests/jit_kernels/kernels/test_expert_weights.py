"""fp4 weights written as fp8 on the device, to the bit."""

import pytest
import torch

from jit_kernels.expert_weights import cuda_backend, pack_fp4, reference
from tests.jit_kernels.kernels.experts import fp4_weight
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits

pytestmark = pytest.mark.gpu
SHAPES = with_large([(1, 128, 256), (3, 256, 128)], [(5, 4096, 4096), (3, 4096, 2048)])


def check(words: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fail unless kernel and reference agree; return the numbers, and how many were rounded."""
    count, rows, columns = words.shape[0], words.shape[1], 4 * words.shape[2]

    def outputs() -> tuple[torch.Tensor, torch.Tensor]:
        codes = torch.empty(count, rows, columns, dtype=torch.float8_e4m3fn, device=words.device)
        return codes, torch.empty(count, rows // 128, columns // 128, device=words.device)

    got, want = outputs(), outputs()
    lost = cuda_backend.expand_fp4(words, scales, *got)
    wanted = reference.expand_fp4(words, scales, *want)
    assert_same_bits(lost, wanted, what="lost")
    assert_same_bits(got[1], want[1], what="block scales")
    assert_same_bits(got[0].view(torch.uint8), want[0].view(torch.uint8), what="codes")
    return reference.dense_fp8(*got), lost


@pytest.mark.parametrize(("count", "rows", "columns"), SHAPES)
def test_weights_of_like_scales_keep_every_number(count: int, rows: int, columns: int) -> None:
    words, scales = fp4_weight(count, rows, columns)

    numbers, lost = check(words, scales)

    assert not lost.any()
    assert_same_bits(numbers + 0.0, reference.dense_fp4(words, scales) + 0.0)


def test_scales_too_far_apart_lose_numbers_and_say_how_many() -> None:
    packed = torch.randint(0, 256, (2, 128, 64), dtype=torch.uint8)
    scales = torch.full((2, 128, 4), 120, dtype=torch.uint8)
    scales[0, 5], scales[0, 9], scales[1, 7, 2] = 106, 80, 105
    words, scales = pack_fp4(packed, scales)

    numbers, lost = check(words, scales)

    wrong = (numbers != reference.dense_fp4(words, scales)).flatten(1)
    assert lost.tolist() == wrong.sum(1).tolist()
    assert (lost > 0).all()
    assert wrong[0].view(128, 128).any(1).nonzero().flatten().tolist() == [9]
