"""Tests of runtime.server.messages_thinking: what signatures carry."""

import pytest

from runtime.errors import BadRequest
from runtime.server.messages_thinking import carry, recall


@pytest.mark.parametrize("thinking", ["", "why", "ü 你好 😀\n\x00", "x" * 10_000])
def test_thinking_that_was_left_out_comes_back(thinking: str) -> None:
    assert recall("", carry(thinking)) == thinking


@pytest.mark.parametrize("signature", [None, "", "msg_1", "EqQBCkYIBBgC"])
def test_thinking_that_was_told_is_what_it_says(signature: str | None) -> None:
    assert recall("why", signature) == "why"
    assert recall("", signature) == ""


@pytest.mark.parametrize("tail", ["=", "a", "%%%%", "/w=="])
def test_a_signature_that_was_tampered_with_is_refused(tail: str) -> None:
    with pytest.raises(BadRequest, match="signature"):
        recall("", carry("") + tail)
