"""Vendors' libraries: the releases that tests run with are those that are installed for users."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PIN = re.compile(r"([a-z0-9-]+)==([\w.]+)")


def pins() -> dict[str, str]:
    """Return the release of each distribution that the extra `cuda` and its comment name."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    extras: dict[str, list[str]] = tomllib.loads(text)["project"]["optional-dependencies"]
    beside = re.search(r"pip install --no-deps (\S+)`", text)
    assert beside is not None
    found = (_PIN.match(spec) for spec in [*extras["cuda"], beside[1]])
    return {pin[1]: pin[2] for pin in found if pin is not None}


def test_every_release_of_the_extra_for_gpus_is_pinned() -> None:
    assert set(pins()) == {*("sgl-deep-gemm", "sgl-flash-mla", "tokenspeed-fa3", "torch", "triton")}


@pytest.mark.gpu
def test_on_the_gpu_tests_run_with_the_releases_that_are_pinned() -> None:
    for name, wanted in pins().items():
        try:
            # A build for one CUDA release adds "+cu130".
            assert version(name).split("+")[0] == wanted, name
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
