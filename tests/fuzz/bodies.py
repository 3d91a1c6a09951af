"""Bodies of requests to every route: answered, or refused in the documented form; never a 500."""

import json
from functools import partial
from typing import Any, cast

import jsonschema
from hypothesis import strategies as st

from tests.fuzz.mutation import damaged_bytes, damaged_json, json_text
from tests.runtime.server.test_documentation import POSTED

__all__ = ["BODIES", "judge", "parts_of"]

Json = dict[str, Any]
_MOST_REFUSAL_BYTES = 8192
# A deadline that the client asked for, and a queue that it may not wait in.
_OWN_DEADLINE = (503, 504)
_BODIES: dict[str, list[Json]] = {
    path: [{**body, **more} for body in bodies for more in ({}, {"stream": True})]
    for path, bodies in POSTED.items()
}
_ALL = [body for bodies in _BODIES.values() for body in bodies]
_PATHS = st.sampled_from(list(POSTED))


def _input(path: str, body: Any) -> bytes:
    return path.encode() + b"\n" + json_text(body)


# A path, a line end, and a body: damaged, of any other path, or no JSON.
BODIES: st.SearchStrategy[bytes] = st.one_of(
    _PATHS.flatmap(lambda path: damaged_json(_BODIES[path]).map(partial(_input, path))),
    st.builds(_input, _PATHS, damaged_json(_ALL)),
    damaged_bytes([_input(path, body) for path, bodies in _BODIES.items() for body in bodies]),
)


def parts_of(data: bytes) -> tuple[str, bytes] | None:
    """Return the path and the body of an input, None where it names no route."""
    path, _, body = data.partition(b"\n")
    text = path.decode(errors="replace")
    return (text, body) if text in POSTED else None


def judge(document: Json, path: str, status: int, kind: str, reply: bytes) -> None:
    """Fail unless a reply to a POST is one that the OpenAPI document describes.

    kind  the reply's content type
    """
    assert status < 500 or status in _OWN_DEADLINE, f"{path}: {status} {reply[:500]!r}"
    if kind.startswith("text/event-stream"):
        assert status == 200, status
        for line in reply.split(b"\n"):
            assert not line or line.startswith((b"data: ", b"event: ")), line
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                json.loads(line.removeprefix(b"data: "))
        return
    if status == 200:
        return
    assert 400 <= status < 600, f"{path}: {status}"
    assert len(reply) < _MOST_REFUSAL_BYTES, f"{path}: a refusal of {len(reply)} bytes"
    error: Any = json.loads(reply)
    operation = document["paths"][path]["post"]["responses"]
    schema = operation["4XX"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator(schema).validate(error)
    message: Any = error.get("error", error)
    if isinstance(message, dict):
        message = cast(Json, message)["message"]
    assert isinstance(message, str)
    assert message.strip(), error
