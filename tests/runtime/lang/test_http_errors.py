"""Tests of runtime.lang.http_errors; test_connection.py has the statuses."""

import httpx
import pytest

from runtime.errors import BadRequest, QueueFull, RequestFailed, Unauthorized
from runtime.lang.http_errors import error_of, refusal


def reply(status: int, *, key: str | None = None, **headers: str) -> httpx.Response:
    sent = {} if key is None else {"Authorization": f"Bearer {key}"}
    request = httpx.Request("POST", "http://server/x", headers=sent)
    return httpx.Response(status, headers=headers, request=request)


def test_a_redirect_says_where_it_points() -> None:
    error = refusal(reply(307, location="https://elsewhere/x?token=t"), "")

    assert isinstance(error, RequestFailed)
    assert str(error).startswith("the server redirects to https://elsewhere/x, which is not")


@pytest.mark.parametrize("key", [None, "k"])
def test_a_missing_key_is_told_from_a_wrong_one(key: str | None) -> None:
    error = refusal(reply(401, key=key), '{"error": {"message": "wrong key"}}')

    assert isinstance(error, Unauthorized)
    shown = "wrong key" if key else "wrong key (no API key was sent)"
    assert str(error) == error.message == shown


def test_a_full_server_says_how_long_to_wait() -> None:
    error = refusal(reply(429, **{"retry-after": "7"}), "")

    assert isinstance(error, QueueFull)
    assert error.retry_after_s == 7
    vague = refusal(reply(429, **{"retry-after": "soon"}), "")
    assert isinstance(vague, QueueFull)
    assert vague.retry_after_s == 0


def test_a_body_of_any_form_becomes_one_line() -> None:
    assert str(error_of(502, "<html>\n  <p>Bad\n gateway</p>")) == "<html> <p>Bad gateway</p>"
    assert str(error_of(500, "")) == "status 500"
    for text in ('{"error": "no"}', "[1]", '{"error": {"type": "x"}}'):
        assert str(error_of(400, text)) == text
    inside = error_of(None, '{"error": {"message": "hot", "type": "invalid_request_error"}}')
    assert (type(inside), inside.status) == (BadRequest, 400)
