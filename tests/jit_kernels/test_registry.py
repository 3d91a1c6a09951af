"""Choosing a backend: the first that can run, the one that is named, or a reason."""

import math
from collections.abc import Callable

import pytest
import torch

from jit_kernels.registry import (
    _CHOSEN,
    Backend,
    BackendUnavailable,
    chosen,
    select,
    unknown_forced,
)


def _no_device() -> str | None:
    return "there is no such device"


REFERENCE = Backend("reference", "math:sqrt")
FAST = Backend("fast", "math:floor", _no_device)
NOT_INSTALLED = Backend("vendor", "no_such_module_at_all:run", _no_device)


def test_the_first_usable_backend_is_chosen_and_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = select("sqrt_for_test", [NOT_INSTALLED, FAST, REFERENCE])

    assert run is math.sqrt
    assert chosen()["sqrt_for_test"] == "reference"


def test_the_environment_forces_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("KERNEL_CEIL_FOR_TEST", "second")

    run = select("ceil_for_test", [REFERENCE, Backend("second", "math:ceil")])

    assert run is math.ceil
    assert chosen()["ceil_for_test"] == "second"


def test_a_forced_backend_that_cannot_run_is_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNEL_SQRT_FOR_TEST", "fast")

    with pytest.raises(BackendUnavailable, match="KERNEL_SQRT_FOR_TEST=fast: there is no such"):
        select("sqrt_for_test", [FAST, REFERENCE])


def test_a_forced_backend_that_is_unknown_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNEL_SQRT_FOR_TEST", "quick")

    with pytest.raises(BackendUnavailable, match="no such backend, only fast, reference"):
        select("sqrt_for_test", [FAST, REFERENCE])


def test_without_a_usable_backend_every_reason_is_given() -> None:
    with pytest.raises(BackendUnavailable, match=r"fast: there is no such.*vendor: there is no"):
        select("sqrt_for_test", [FAST, NOT_INSTALLED])


def test_each_kind_of_device_gets_the_first_backend_that_takes_its_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    backends = [
        Backend("host", "torch:neg", device="cpu"),
        Backend("fast", "torch:abs", device="cuda"),
        Backend("reference", "torch:clone"),
    ]

    run: Callable[..., torch.Tensor] = select("neg_for_test", backends)

    assert (chosen("cpu")["neg_for_test"], chosen("cuda")["neg_for_test"]) == ("host", "fast")
    assert run(torch.ones(1)).item() == -1.0


def test_a_forced_backend_is_for_the_devices_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("KERNEL_ABS_FOR_TEST", "fast")
    backends = [
        Backend("host", "torch:neg", device="cpu"),
        Backend("other", "torch:sin", device="cuda"),
        Backend("fast", "torch:abs", device="cuda"),
        Backend("reference", "torch:clone"),
    ]

    select("abs_for_test", backends)

    assert (chosen("cpu")["abs_for_test"], chosen("cuda")["abs_for_test"]) == ("host", "fast")


def test_a_backend_for_devices_that_are_not_there_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    run = select(
        "cuda_for_test",
        [Backend("fast", "no_such_module_at_all:run", device="cuda"), REFERENCE],
    )

    assert run is math.sqrt
    assert "cuda_for_test" not in chosen("cuda")
    monkeypatch.setenv("KERNEL_CUDA_FOR_TEST", "fast")
    with pytest.raises(BackendUnavailable, match="takes no tensors of cpu"):
        select("cuda_for_test", [Backend("fast", "math:floor", device="cuda"), REFERENCE])


def test_a_name_that_forces_nothing_is_told_with_those_like_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(_CHOSEN, ("rms_norm", "cpu"), "reference")
    monkeypatch.setenv("KERNEL_RMS_NORM", "reference")
    monkeypatch.setenv("KERNEL_RMSNORM", "reference")

    [fault] = [fault for fault in unknown_forced() if "RMSNORM" in fault]

    assert fault.startswith("KERNEL_RMSNORM forces nothing")
    assert "there is KERNEL_RMS_NORM" in fault
    assert not [fault for fault in unknown_forced() if fault.startswith("KERNEL_RMS_NORM ")]
