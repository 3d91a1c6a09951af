"""Tests of runtime.lang.failures."""

import asyncio
import traceback

import pytest

from runtime.errors import Aborted, BadSampling, QueueFull, RequestError
from runtime.lang.failures import bare, cancelled, label, labelled, named, shorten


def test_a_label_is_how_a_program_writes_it() -> None:
    assert (label("gen", "answer"), label("select", None)) == ('gen("answer")', "select()")


@pytest.mark.parametrize(
    "error", [BadSampling("n", "at least 1", 0), QueueFull("full", retry_after_s=3)]
)
def test_a_named_error_is_the_same_but_for_its_message(error: RequestError) -> None:
    copy = named(error, "here")

    assert type(copy) is type(error)
    assert str(copy) == copy.message == f"here: {error.message}"
    assert {**vars(copy), "message": ""} == {**vars(error), "message": ""}
    assert not str(error).startswith("here")


def raise_through(frames: int) -> None:
    if frames == 0:
        raise BadSampling("n", "at least 1", 0)
    raise_through(frames - 1)


async def fail() -> None:
    raise_through(2)


def test_a_request_fails_under_its_label_alone() -> None:
    with pytest.raises(BadSampling, match=r"^gen: n must be") as caught:
        asyncio.run(labelled(fail(), "gen"))

    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1


def test_only_errors_of_requests_lose_frames() -> None:
    with pytest.raises(BadSampling) as refused:
        asyncio.run(labelled(fail(), "gen"))
    error = refused.value
    modules = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert "labelled" in modules

    shorten(error)
    kept = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert kept == [name for name in modules if name != "labelled"]
    assert bare(error).__traceback__ is None
    with pytest.raises(ZeroDivisionError) as broken:
        _ = 1 / 0
    assert bare(broken.value).__traceback__ is not None


def test_what_a_cancelled_program_lacks_was_aborted() -> None:
    assert isinstance(cancelled(), Aborted)
    assert "cancelled" in cancelled().message
