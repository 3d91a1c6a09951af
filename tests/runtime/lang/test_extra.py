"""What programs need and is not installed is said where they begin, not in a thread of theirs."""

from collections.abc import Iterator

import pytest

from runtime.errors import ConfigError
from runtime.lang.bodies import BodyThreads
from runtime.lang.connection import Connection
from runtime.lang.extra import require


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    require.cache_clear()
    monkeypatch.setattr(f"{require.__module__}.find_spec", lambda name: None)
    yield
    require.cache_clear()


def test_a_body_wants_greenlet() -> None:
    with pytest.raises(ConfigError, match=r"greenlet.*pip install -e '\.\[lang\]'"):
        BodyThreads().start(lambda: None)


def test_a_connection_wants_httpx() -> None:
    with pytest.raises(ConfigError, match="httpx"):
        Connection("http://127.0.0.1:1")
