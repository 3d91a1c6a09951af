"""Whatever a model writes for a format, validators and parsers take it."""

import datetime
import ipaddress
import json
import random
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import idna
import jsonschema
import numpy as np
import pydantic
import pytest

from runtime.grammar.formats import FORMATS
from runtime.grammar.nursery_process import NurseryProcess
from runtime.grammar.vocabulary import token_bytes
from runtime.grammar.wire import Accept, Channel, Close, Compile, Compiled, FromGrammar, Mask, Open
from runtime.messages import Grammar
from tests.testing.stand_in.tokenizer import EOS_ID, VOCAB_SIZE, train_tokenizer

WALKS = 40
# jsonschema refuses relative JSON pointers whose number has a zero before another digit, as in
# `100#`; the draft refuses a leading zero only, and that is what the judge below says.
CHECKER = jsonschema.FormatChecker(())
CHECKER.checkers = {
    name: checker
    for name, checker in jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers.items()
    if name != "relative-json-pointer"
}
SPELLING = token_bytes(train_tokenizer(), VOCAB_SIZE)


def schema_of(name: str) -> dict[str, Any]:
    return {"type": "string", "format": name}


class Writer:
    """Writes at random what a grammar allows."""

    def __init__(self, nursery: NurseryProcess, schema: object) -> None:
        self._channel: Channel[FromGrammar] = Channel(nursery.start(), FromGrammar)
        self._slots = 0
        answer = self._ask(Compile(Grammar("json_schema", json.dumps(schema)), 30.0, 1 << 29))
        assert answer == Compiled(), answer

    def close(self) -> None:
        """End the grammar's process."""
        self._channel.close()

    def write(self, pick: random.Random) -> Any:
        """Return a value that the grammar let through; it ends when it may, half of the time."""
        self._slots += 1
        allowed, text = self._allowed(Open(self._slots)), b""
        while EOS_ID not in allowed or (len(allowed) > 1 and pick.random() < 0.5):
            inner = sorted(allowed - {EOS_ID})
            ends = [token for token in inner if SPELLING[token].startswith(b'"') and text]
            token = pick.choice(ends if ends and pick.random() < 0.1 else inner)
            text += SPELLING[token]
            allowed = self._allowed(Accept(self._slots, token))
        self._channel.send(Close(self._slots))
        return json.loads(text)

    def _allowed(self, message: Open | Accept) -> set[int]:
        mask = self._ask(message)
        assert isinstance(mask, Mask), mask
        bits = np.unpackbits(np.frombuffer(mask.bits, dtype=np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    def _ask(self, message: Compile | Open | Accept) -> FromGrammar:
        self._channel.send(message)
        got: list[FromGrammar] = []
        while not got:
            got = self._channel.receive()
        [answer] = got
        return answer


Start = Callable[[object], Writer]


@pytest.fixture
def start(nursery: NurseryProcess) -> Iterator[Start]:
    """Start writers that end with the test."""
    started: list[Writer] = []

    def one(schema: object) -> Writer:
        started.append(Writer(nursery, schema))
        return started[-1]

    yield one
    for writer in started:
        writer.close()


def parsed(kind: Any) -> Callable[[str], object]:
    """Return what parses JSON strings as pydantic does."""
    adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kind)
    return lambda text: adapter.validate_json(json.dumps(text))


def is_hostname(text: str) -> None:
    labels = text.split(".")
    assert len(text) <= 253
    for label in labels:
        assert re.fullmatch("[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", label)
    assert not labels[-1].isdigit()
    idna.encode(text)


def is_email(text: str) -> None:
    local, at, domain = text.rpartition("@")
    assert at
    assert len(local) <= 64
    assert "." in domain
    atom = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
    assert re.fullmatch(rf"{atom}(\.{atom})*", local)
    is_hostname(domain)


# RFC 3986, appendix A, without literals of hosts.
_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_REST = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_AUTHORITY = rf"//(?:(?![:@]){_PCHAR})+(?::[0-9]*)?(?:/{_PCHAR}*)*"
URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}|//(?:/{_PCHAR}*)+|{_PCHAR}+(?:/{_PCHAR}*)*){_REST}"
RELATIVE = rf"(?:/|/?(?:(?!:){_PCHAR})+(?:/{_PCHAR}*)*)?{_REST}"
_NAME = "[A-Za-z0-9_]+(?:\\.[A-Za-z0-9_]+)*(?::[1-9][0-9]{0,3}|\\*)?"
TEMPLATE = rf"(?:[^\s\"'<>%\\^`{{|}}]|%[0-9A-Fa-f]{{2}}|{{[+#./;?&]?{_NAME}(?:,{_NAME})*}})*"
_DATE = r"(?:\d+D|\d+M(?:\d+D)?|\d+Y(?:\d+M(?:\d+D)?)?)"
_CLOCK = r"T(?:\d+S|\d+M(?:\d+S)?|\d+H(?:\d+M(?:\d+S)?)?)"
DURATION = rf"P(?:{_DATE}(?:{_CLOCK})?|{_CLOCK}|\d+W)"


def matches(pattern: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        assert re.fullmatch(pattern, text), text

    return check


def is_version(number: int) -> Callable[[str], None]:
    def check(text: str) -> None:
        assert uuid.UUID(text).version == number

    return check


JUDGES: dict[str, list[Callable[[str], object]]] = {
    "date": [datetime.date.fromisoformat, parsed(datetime.date)],
    "time": [datetime.time.fromisoformat, parsed(datetime.time)],
    "date-time": [datetime.datetime.fromisoformat, parsed(pydantic.AwareDatetime)],
    "duration": [matches(DURATION), parsed(datetime.timedelta)],
    "ipv4": [ipaddress.IPv4Address, parsed(ipaddress.IPv4Address)],
    "ipv6": [ipaddress.IPv6Address, parsed(ipaddress.IPv6Address)],
    "ipvanyaddress": [ipaddress.ip_address, parsed(pydantic.IPvAnyAddress)],
    "uuid": [uuid.UUID, parsed(uuid.UUID)],
    **{f"uuid{n}": [is_version(n)] for n in (1, 3, 4, 5, 6, 7, 8)},
    "hostname": [is_hostname],
    "idn-hostname": [is_hostname],
    "email": [is_email],
    "idn-email": [is_email],
    "uri": [matches(URI), parsed(pydantic.AnyUrl)],
    "iri": [matches(URI), parsed(pydantic.AnyUrl)],
    "uri-reference": [matches(f"{URI}|{RELATIVE}")],
    "iri-reference": [matches(f"{URI}|{RELATIVE}")],
    "uri-template": [matches(TEMPLATE)],
    "json-pointer": [matches("(?:/(?:[^/~]|~[01])*)*")],
    "relative-json-pointer": [matches("(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)")],
}


def test_every_format_has_a_judge() -> None:
    assert JUDGES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_at_random_validates(start: Start, name: str) -> None:
    writer, pick = start(schema_of(name)), random.Random(name)
    form = FORMATS[name]

    for _ in range(WALKS):
        text = writer.write(pick)
        jsonschema.validate(text, schema_of(name), format_checker=CHECKER)
        for judge in JUDGES[name]:
            judge(text)
        assert form.least <= len(text)
        assert form.most is None or len(text) <= form.most
        assert re.fullmatch(form.pattern, text)


COMMON = {
    "date": ["2024-02-29", "2000-02-29", "1999-12-31", "0001-01-01"],
    "time": ["00:00:00Z", "23:59:59.123+05:30"],
    "date-time": ["2024-02-29T12:00:00Z", "1985-04-12T23:20:50.52-08:00"],
    "duration": ["P1D", "PT36H", "P3Y6M4DT12H30M5S", "P2W"],
    "ipv4": ["0.0.0.0", "255.255.255.255", "192.168.1.10"],
    "ipv6": ["::", "::1", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "fe80::1"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "uuid4": ["16fd2706-8baf-433b-82eb-8c7fada847da"],
    "hostname": ["localhost", "www.bbc.co.uk", "my-cool-site.example.com", "a.b.c.d.org"],
    "email": ["jane.doe+news@example.co.uk", "o'neil@verbraucherzentrale.de"],
    "uri": [
        "https://example.com", "http://localhost:8000/a/b?c=d#e", "ftp://1.2.3.4/x", "s3://bucket/key",
        "mailto:a@b.org", "urn:isbn:0451450523", "file:///etc/hosts", "https://a.b/%C3%A9?q=1&r=2",
    ],
    "uri-reference": ["", "/a/b", "a/b?c", "#x", "../up", "https://example.com/"],
    "uri-template": ["http://example.com/{user}/{?page,size}", "/x{/path*}"],
    "json-pointer": ["", "/a/0/~1b", "/é"],
    "relative-json-pointer": ["0#", "1/a"],
}  # fmt: skip


@pytest.mark.parametrize("name", COMMON)
def test_what_people_write_fits(name: str) -> None:
    for text in COMMON[name]:
        assert re.fullmatch(FORMATS[name].pattern, text), text


WRONG = {
    "date": ["9728-09-31", "2023-02-29", "1900-02-29", "0000-01-01", "2024-13-01", "2024-1-01"],
    "time": ["02:05:60Z", "24:00:00Z", "12:00:00", "12:00Z"],
    "date-time": ["2024-02-30T12:00:00Z", "2024-02-29 12:00:00Z"],
    "ipv4": ["025.60.60.60", "1.2.3", "256.1.1.1"],
    "ipv6": ["1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "12345::"],
    "hostname": ["-a.com", "a-.com", "a..b", "1.2.3.4", ""],
    "email": ['"a b"@example.com', "a@b", ".a@b.org", "a@-b.org"],
    "uri": ["http://", "//a/b", "http://a b", "file://host:80/"],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_does_not_fit(name: str) -> None:
    for text in WRONG[name]:
        assert not re.fullmatch(FORMATS[name].pattern, text), text


def test_a_format_holds_in_every_place_of_a_schema(start: Start) -> None:
    day: dict[str, Any] = {"format": "date"}
    schema = {
        "type": "object",
        "properties": {
            "plain": {**day, "title": "A day"},
            "choice": {"anyOf": [{"type": "null"}, {**day, "type": "string"}]},
            "either": {**day, "type": ["string", "null"]},
            "named": {"$ref": "#/$defs/when"},
            "days": {"type": "object", "propertyNames": day, "maxProperties": 2,
                     "additionalProperties": {"type": "null"}},
        },
        "required": ["plain", "choice", "either", "named", "days"],
        "additionalProperties": False,
        "$defs": {"when": {"type": "string", "format": "date", "minLength": 1}},
    }  # fmt: skip
    writer, pick = start(schema), random.Random(1)

    for _ in range(WALKS):
        jsonschema.validate(writer.write(pick), schema, format_checker=CHECKER)
