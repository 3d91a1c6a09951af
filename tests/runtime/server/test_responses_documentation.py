"""Tests of runtime.server.responses_documentation: its schemas, not yet the replies."""

import jsonschema
import pytest

import runtime.server.responses_documentation as documentation
from runtime.server.reply_schemas import Schema

OWN = ("RESPONSE", "RESPONSE_DELETED", "RESPONSE_EVENT")


@pytest.mark.parametrize("name", OWN)
def test_every_schema_is_one(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(getattr(documentation, name))


def test_every_event_has_a_type_of_its_own_and_a_number() -> None:
    events: list[Schema] = documentation.RESPONSE_EVENT["anyOf"]
    kinds = [kind for event in events for kind in event["properties"]["type"]["enum"]]

    assert len(kinds) == len(set(kinds)) == 17
    assert all("sequence_number" in event["required"] for event in events)
