"""The cases beside `sgl_kernel`: ours run anywhere, and on a GPU both give the same."""

import importlib.util

import pytest
import torch

from tests.bench.kernels.vendor_cases import ALIKE, VendorCase, vendor_cases

SIZES = (1, 70)


def test_ours_runs_in_every_case() -> None:
    for case in vendor_cases(SIZES):
        if case.op != "select_topk":
            case.prepare().ours()


def test_a_shape_is_measured_once() -> None:
    found = [(case.op, case.shape) for case in vendor_cases()]

    assert len(set(found)) == len(found)
    assert all(case.moved_bytes > 0 for case in vendor_cases())


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("sgl_kernel") is None, reason="no sgl_kernel")
@pytest.mark.parametrize("case", [*vendor_cases((70, 5_000))], ids=lambda c: f"{c.op} {c.shape}")
def test_both_give_the_same(case: VendorCase) -> None:
    with torch.device("cuda"):
        assert case.prepare().differ() <= ALIKE
