"""Tests of runtime.lang.address."""

import pytest

from runtime.lang.address import checked_url, header_value, is_local, origin, shown_url


def test_a_base_url_is_checked_before_anything_is_sent() -> None:
    assert checked_url("http://host:30000/v1/") == "http://host:30000/v1"
    assert checked_url("https://[::1]/") == "https://[::1]"
    for wrong in ("", "localhost:30000", "host/v1", "ftp://host", "http://", "http://host:port"):
        with pytest.raises(ValueError, match="OPENAI_BASE_URL must be http"):
            checked_url(wrong, "OPENAI_BASE_URL")


def test_a_shown_url_has_no_secrets() -> None:
    assert shown_url("https://me:secret@host:8/v1?key=secret#x") == "https://host:8/v1"
    assert shown_url("http://host") == "http://host"


def test_an_origin_has_its_default_port() -> None:
    assert origin("https://host/a") == origin("https://host:443/b") == ("https", "host", 443)
    assert origin("http://host") != origin("https://host")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("a.localhost", True),
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("[::1]", True),
        ("0.0.0.0", True),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("api.openai.com", False),
    ],
)
def test_this_machine_is_told_from_others(host: str, local: bool) -> None:
    assert is_local(f"http://{host}:30000/v1") is local


def test_a_value_that_no_header_holds_is_refused_and_not_shown() -> None:
    assert header_value("api_key", "clé") == "clé".encode()
    for wrong in ("secret-key\n", " secret-key", "secret\rkey", "secret\0key"):
        with pytest.raises(ValueError, match="api_key has") as caught:
            header_value("api_key", wrong)
        assert "secret" not in str(caught.value)
