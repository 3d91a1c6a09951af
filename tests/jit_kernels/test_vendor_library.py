"""What stands against vendor libraries is said, not found out by a failing import."""

import importlib.util

import pytest
import torch

from jit_kernels.vendor_library import why_no_deep_gemm


def test_without_a_cuda_device_that_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert why_no_deep_gemm.__wrapped__() == "no CUDA device"


def test_another_chip_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Blackwell")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    assert "this is Blackwell" in str(why_no_deep_gemm.__wrapped__())

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert why_no_deep_gemm.__wrapped__() == "deep_gemm is not installed"


def test_hopper_with_the_package_has_nothing_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())

    assert why_no_deep_gemm.__wrapped__() is None
