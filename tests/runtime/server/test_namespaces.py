"""Tests of runtime.server.namespaces."""

import pytest

from runtime.errors import BadRequest
from runtime.messages import Generate
from runtime.server.namespaces import CacheNamespaces
from tests.runtime.server.engine import Server, served


@served()
async def test_a_salt_reaches_the_scheduler_as_a_namespace(server: Server) -> None:
    for salt in ("", "a", "b", "a"):
        await server.post("/generate", {"text": "x", "cache_salt": salt})
    await server.post("/v1/completions", {"prompt": "x", "cache_salt": "a"})
    chat = {"messages": [{"role": "user", "content": "x"}], "cache_salt": "a"}
    await server.post("/v1/chat/completions", chat)

    requests: list[Generate] = server.engine.requests
    plain, a, b, *again = [request.namespace for request in requests]
    assert plain == ""
    assert len({plain, a, b}) == 3
    assert again == [a, a, a]


def test_keys_salts_and_extra_keys_all_separate_namespaces() -> None:
    names = {
        CacheNamespaces(key).of(salt, extra)
        for key in (None, "k1", "k2")
        for salt in (None, "x", "y")
        for extra in (None, "x", "y")
    }

    assert len(names) == 27
    assert all(len(name) in (0, 32) for name in names)


@pytest.mark.parametrize("salt", ["x" * 129, "a b", "a\n", "é", "\x00", "{}"])
def test_a_salt_of_other_characters_is_refused(salt: str) -> None:
    with pytest.raises(BadRequest, match="cache_salt"):
        CacheNamespaces(None).of(salt)
