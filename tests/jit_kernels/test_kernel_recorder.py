"""Calls made so that what they take is known; those that fail are told."""

import pytest
import torch

from jit_kernels.kernel_recorder import record
from jit_kernels.vendor_calls import VendorCalls, to_json
from tests.testing import fake_deep_gemm


def test_one_call_that_fails_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = fake_deep_gemm.install(monkeypatch)
    bad = VendorCalls("bf16_linear", "mixed", (16,), (9, 10))
    good = VendorCalls("bf16_linear", "mixed", (16, 64), (8, 9))

    (fault,) = record(to_json([bad, good, bad]), torch.device("cpu"))

    assert fault.startswith("bf16_linear: ValueError: ")
    assert [name for name, *_ in seen] == ["bf16_gemm_nt"]
