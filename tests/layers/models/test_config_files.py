"""Files of a configuration, and what overrides them."""

import json
from pathlib import Path
from typing import Any

import pytest

from layers.models.config_files import parse_override, read_files
from layers.models.json_fields import ConfigFault


def _write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value), encoding="utf-8")


def test_both_files_and_the_override_are_read(tmp_path: Path) -> None:
    _write(tmp_path, "config.json", {"a": 1})

    assert read_files(tmp_path) == ({"a": 1}, {}, {})

    _write(tmp_path, "generation_config.json", {"b": [2]})
    assert read_files(tmp_path, "a=3") == ({"a": 1}, {"b": [2]}, {"a": 3})


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, name: str, text: str) -> None:
    _write(tmp_path, "config.json", {})
    (tmp_path / name).write_text(text, encoding="utf-8")

    with pytest.raises(ConfigFault, match=name.replace(".", r"\.")):
        read_files(tmp_path)


def test_a_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFault, match=f"no config.json in {tmp_path}"):
        read_files(tmp_path)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", {}),
        ("  ", {}),
        ("a=1", {"a": 1}),
        ('a = [1, 2] , b={"c": "d,e=f"},g=null', {"a": [1, 2], "b": {"c": "d,e=f"}, "g": None}),
    ],
)
def test_values_of_an_override_are_json(text: str, want: dict[str, Any]) -> None:
    assert parse_override(text) == want


@pytest.mark.parametrize("text", ["a", "a=", "a=x", "a=1 b=2", "a=1,", "a=[1"])
def test_another_override_is_refused(text: str) -> None:
    with pytest.raises(ConfigFault, match="override"):
        parse_override(text)
