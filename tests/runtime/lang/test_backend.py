"""Tests of runtime.lang.backend: the default, and what is asked of it directly."""

import os
from collections.abc import Iterator

import pytest

from runtime.lang.backend import (
    backend_or_default,
    flush_cache,
    get_server_info,
    global_config,
    set_default_backend,
)
from tests.runtime.lang.fake import FakeBackend


@pytest.fixture(autouse=True)
def _no_default() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Leave no default behind."""
    set_default_backend(None)
    yield
    set_default_backend(None)


def test_without_a_backend_it_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="set_default_backend"):
        backend_or_default(None)


def test_a_backend_that_is_given_wins_over_the_default() -> None:
    default, own = FakeBackend(), FakeBackend()
    set_default_backend(default)

    assert backend_or_default(None) is default
    assert backend_or_default(own) is own


def test_cache_and_facts_are_asked_from_synchronous_code() -> None:
    backend = FakeBackend()

    assert flush_cache(backend)
    assert backend.flushed
    assert get_server_info(backend) == {"version": "fake"}
    backend.flushed = False
    assert backend.flush_cache()
    assert backend.flushed
    assert backend.get_server_info() == {"version": "fake"}


def test_a_forked_process_is_told_that_it_has_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    flush_cache(backend)
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)

    with pytest.raises(RuntimeError, match="forked"):
        backend_or_default(backend)


def test_the_default_is_in_the_global_configuration() -> None:
    backend = FakeBackend()
    set_default_backend(backend)

    assert global_config.default_backend is backend
    global_config.default_backend = None
    with pytest.raises(ValueError, match="no backend"):
        backend_or_default(None)
    with pytest.raises(AttributeError):
        global_config.verbosity = 2  # pyright: ignore[reportAttributeAccessIssue]
