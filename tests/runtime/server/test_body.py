"""Tests of runtime.server.body: what is no request is a 400 that says why."""

import asyncio
import json

import pytest

from runtime.errors import BadRequest
from runtime.server.body import MAX_BODY_BYTES, MAX_PARTS, MAX_VALUES, decode
from runtime.server.openai_schema import CompletionBody
from tests.runtime.server.engine import Server, served

JSON = "application/json"
DEEP = 100_000
HOSTILE = {
    "empty": b"",
    "cut off": b'{"prompt": "x"',
    "trailing": b'{"prompt": "x"} x',
    "not json": b"prompt=x",
    "a list": b"[]",
    "null": b"null",
    "a string": b'"x"',
    "byte order mark": b'\xef\xbb\xbf{"prompt": "x"}',
    "latin-1": b'{"prompt": "\xe9"}',
    "latin-1 in an unknown field": b'{"prompt": "x", "note": "\xe9"}',
    "utf-16": '{"prompt": "x"}'.encode("utf-16"),
    "surrogate bytes": b'{"prompt": "\xed\xa0\x80"}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "lone low surrogate": b'{"prompt": "\\udc00x"}',
    "raw control character": b'{"prompt": "a\x00b"}',
    "nan": b'{"prompt": "x", "temperature": NaN}',
    "infinity": b'{"prompt": "x", "temperature": Infinity}',
    "minus infinity": b'{"prompt": "x", "note": -Infinity}',
    "overflowing float": b'{"prompt": "x", "temperature": 1e999}',
    "long int": b'{"prompt": "x", "max_tokens": ' + b"9" * 30 + b"}",
    "endless int": b'{"prompt": "x", "max_tokens": ' + b"9" * 10_000 + b"}",
    "long seed": b'{"prompt": "x", "seed": 9223372036854775808}',
    "endless seed": b'{"prompt": "x", "seed": ' + b"9" * 4000 + b"}",
    "negative long n": b'{"prompt": "x", "n": -' + b"9" * 4000 + b"}",
    "long top_k": b'{"prompt": "x", "top_k": ' + b"9" * 4000 + b"}",
    "long priority": b'{"prompt": "x", "priority": ' + b"9" * 40 + b"}",
    "long token id": b'{"prompt": [' + b"9" * 40 + b"]}",
    "64-bit token id": b'{"prompt": [9223372036854775808]}',
    "negative token id": b'{"prompt": [-1]}',
    "unknown token id": b'{"prompt": [300]}',
    "float token id": b'{"prompt": [1.5]}',
    "bool token id": b'{"prompt": [true]}',
    "mixed prompt": b'{"prompt": ["x", 1]}',
    "mixed ids": b'{"prompt": [1, [2]]}',
    "no ids": b'{"prompt": []}',
    "empty list of ids": b'{"prompt": [[]]}',
    "empty text": b'{"prompt": ""}',
    "prompt missing": b"{}",
    "prompt null": b'{"prompt": null}',
    "prompt object": b'{"prompt": {}}',
    "too many prompts": b'{"prompt": [' + b'"x",' * 256 + b'"x"]}',
    "deep list": b'{"prompt": "x", "note": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep object": b'{"prompt": "x", "note": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "deep prompt": b'{"prompt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "stop of numbers": b'{"prompt": "x", "stop": [1]}',
    "empty stop": b'{"prompt": "x", "stop": ""}',
    "100,000 stops": json.dumps({"prompt": "x", "stop": ["y"] * 100_000}).encode(),
    "logit bias key": b'{"prompt": "x", "logit_bias": {"a": 1}}',
    "logit bias id": b'{"prompt": "x", "logit_bias": {"300": 1}}',
    "logit bias value": b'{"prompt": "x", "logit_bias": {"1": null}}',
    "n of zero": b'{"prompt": "x", "n": 0}',
    "n of a bool": b'{"prompt": "x", "n": true}',
    "n of a string": b'{"prompt": "x", "n": "2"}',
    "max_tokens of a float": b'{"prompt": "x", "max_tokens": 1.5}',
    "stream of a string": b'{"prompt": "x", "stream": "yes"}',
    "stream_options of a list": b'{"prompt": "x", "stream_options": []}',
    "rid endless": json.dumps({"prompt": "x", "rid": "r" * 300}).encode(),
    "rid empty": b'{"prompt": "x", "rid": ""}',
    "salt with blanks": b'{"prompt": "x", "cache_salt": "a b"}',
    "model of a number": b'{"prompt": "x", "model": 5}',
}


@pytest.mark.parametrize("name", HOSTILE)
@served()
async def test_a_hostile_body_is_a_bad_request(server: Server, name: str) -> None:
    reply = await server.client.post(
        "/v1/completions", content=HOSTILE[name], headers={"content-type": JSON}
    )

    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert 0 < len(error["message"]) < 400
    assert not server.engine.requests
    assert (await server.post("/v1/completions", {"prompt": "x"})).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", "hot"), ("n", []), ("stop", 5), ("logit_bias", {"a": 1})]
)
@served()
async def test_the_offending_field_is_named(server: Server, field: str, value: object) -> None:
    reply = await server.post("/v1/completions", {"prompt": "x", field: value})

    assert reply.json()["error"]["param"] == field


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
@served()
async def test_only_json_is_read(server: Server, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    for path in ("/generate", "/v1/completions", "/abort_request"):
        reply = await server.client.post(path, content=b'{"abort_all": true}', headers=headers)
        assert reply.status_code == 400
        assert "application/json" in reply.json()["error"]["message"]


@served()
async def test_a_charset_beside_the_content_type_is_fine(server: Server) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    reply = await server.client.post("/generate", content=b'{"text": "x"}', headers=headers)

    assert reply.status_code == 200


@served()
async def test_a_compressed_body_is_refused(server: Server) -> None:
    headers = {"content-type": JSON, "content-encoding": "gzip"}
    reply = await server.client.post("/generate", content=b"\x1f\x8b", headers=headers)

    assert reply.status_code == 400


@served()
async def test_a_body_that_says_it_is_too_large_is_not_read(server: Server) -> None:
    headers = {"content-type": JSON, "content-length": str(MAX_BODY_BYTES + 1)}
    reply = await server.client.post("/v1/completions", content=b"{}", headers=headers)

    assert reply.status_code == 413
    assert reply.json()["error"]["type"] == "invalid_request_error"


@served()
async def test_a_body_that_turns_out_too_large_is_dropped(server: Server) -> None:
    async def endless():  # type: ignore[no-untyped-def]
        while True:
            yield b" " * (1 << 20)

    reply = await server.client.post("/generate", content=endless(), headers={"content-type": JSON})

    assert reply.status_code == 413


@pytest.mark.parametrize(
    "parts", [b"[5],", b'"a",', b'{"a":1},', b"{},"], ids=["arrays", "texts", "keys", "objects"]
)
def test_a_body_of_countless_parts_is_refused_before_it_is_decoded(parts: bytes) -> None:
    body = b'{"prompt": [' + parts * (MAX_PARTS + 1) + b"[5]]}"

    with pytest.raises(BadRequest, match="more than 524288 arrays, objects and strings"):
        decode(body, CompletionBody)


def test_what_stands_in_a_text_is_no_part_of_a_body() -> None:
    text = '["a\\b\\\\"]' * MAX_PARTS
    body = json.dumps({"prompt": text}).encode()

    assert decode(body, CompletionBody).prompt == text


@served()
async def test_a_long_body_is_read_as_a_short_one(server: Server) -> None:
    note = "x" * (2 << 20)
    good = await server.post("/v1/completions", {"prompt": "x", "note": note})
    bad = await server.post("/v1/completions", {"prompt": "x", "note": note, "n": "2"})

    assert good.status_code == 200
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "n")


@served()
async def test_long_bodies_on_their_way_are_bounded_in_all(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short one is read beside them, and once they are gone a long one, too."""
    monkeypatch.setattr("runtime.server.body.MAX_BYTES_ON_THEIR_WAY", 3 << 20)
    headers, begun, end = {"content-type": JSON}, asyncio.Event(), asyncio.Event()
    long = {"prompt": "x", "note": "x" * (2 << 20)}

    async def slow():  # type: ignore[no-untyped-def]
        yield json.dumps(long).encode()[:-1]
        begun.set()  # the next piece is asked for once this one was counted
        await end.wait()
        yield b"}"

    sending = asyncio.ensure_future(
        server.client.post("/v1/completions", content=slow(), headers=headers)
    )
    await begun.wait()
    refused = await server.post("/v1/completions", long)
    short = await server.post("/v1/completions", {"prompt": "x"})
    end.set()

    assert (refused.status_code, short.status_code) == (429, 200)
    assert "retry-after" in refused.headers
    assert (await sending).status_code == 200
    assert (await server.post("/v1/completions", long)).status_code == 200


@served()
async def test_bodies_that_come_at_once_are_decoded_a_turn_each(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, decoded, done = 0, list[int](), asyncio.Event()

    async def count() -> None:
        nonlocal turn
        while not done.is_set():
            turn += 1
            await asyncio.sleep(0)

    def noted(body: bytes, shape: type[CompletionBody]) -> CompletionBody:
        decoded.append(turn)
        return decode(body, shape)

    monkeypatch.setattr("runtime.server.body.decode", noted)
    counting = asyncio.create_task(count())
    long = {"prompt": "x", "note": "x" * 20_000, "max_tokens": 1}
    replies = await asyncio.gather(*(server.post("/v1/completions", long) for _ in range(6)))
    done.set()
    await counting

    assert [reply.status_code for reply in replies] == [200] * 6
    assert len(set(decoded)) == 6


def test_endless_lists_of_numbers_are_refused_and_commas_of_texts_are_not() -> None:
    with pytest.raises(BadRequest, match="values"):
        decode(b'{"prompt": [' + b"7," * (MAX_VALUES + 1) + b"7]}", CompletionBody)

    text = '\\",' * (MAX_VALUES + 1)
    found = decode(b'{"prompt": "' + text.encode() + b'"}', CompletionBody)
    assert found.prompt == '",' * (MAX_VALUES + 1)
