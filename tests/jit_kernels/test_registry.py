"""Choosing a backend: the first that can run, the one that is named, or a reason."""

import math

import pytest

from jit_kernels.registry import Backend, BackendUnavailable, chosen, select


def _no_device() -> str | None:
    return "there is no such device"


REFERENCE = Backend("reference", "math:sqrt")
FAST = Backend("fast", "math:floor", _no_device)
NOT_INSTALLED = Backend("vendor", "no_such_module_at_all:run", _no_device)


def test_the_first_usable_backend_is_chosen_and_remembered() -> None:
    run = select("sqrt_for_test", [NOT_INSTALLED, FAST, REFERENCE])

    assert run is math.sqrt
    assert chosen()["sqrt_for_test"] == "reference"


def test_the_environment_forces_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
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
