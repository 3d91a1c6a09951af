"""The file of API keys is read whole, or refused in one line that has no key."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.api_keys import ApiKey, read_api_keys
from runtime.errors import ConfigError
from runtime.share import Share

SECRET = "sk-very-secret"


def written(folder: Path, text: str) -> str:
    path = folder / "keys"
    path.write_text(text, "utf-8")
    return str(path)


def test_a_plain_file_has_a_key_a_line(tmp_path: Path) -> None:
    keys = read_api_keys(written(tmp_path, f"# ours\n\n  {SECRET} \nsk-2\r\n"))

    assert [(key.name, key.key) for key in keys] == [("line-3", SECRET), ("line-4", "sk-2")]
    assert not any(key.admin or key.shared for key in keys)
    assert SECRET not in repr(keys)


def test_json_names_weighs_and_limits(tmp_path: Path) -> None:
    rows = [
        {"name": "a", "key": SECRET, "weight": 2, "max_running": 3, "max_queued": 0},
        {"name": "b", "key": "k", "shared": True, "admin": True},
    ]

    a, b = read_api_keys(written(tmp_path, json.dumps(rows)))

    assert a.share == Share("a", 2.0, 3, 0)
    assert b == ApiKey("b", "k", shared=True, admin=True)


ROW = {"name": "a", "key": SECRET}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no key"),
        ("# none", "no key"),
        ([], "no key"),
        (ROW, "array"),
        ([{**ROW, "burst": 2}], "burst"),
        ([{"key": SECRET}], "name"),
        ([{**ROW, "name": "a b"}], "the name of key 1"),
        ([{**ROW, "name": "@a"}], "the name of key 1"),
        ([{**ROW, "key": ""}], "a is empty"),
        ([{**ROW, "weight": 0}], "weight of a"),
        ([{**ROW, "weight": SECRET}], "weight"),
        ([{**ROW, "max_running": 0}], "max_running of a"),
        ([{**ROW, "max_queued": -1}], "max_queued of a"),
        ([ROW, {**ROW, "key": "k"}], "name a is there twice"),
        ([ROW, {**ROW, "name": "b"}], "key of b is there twice"),
        (f"[{{{SECRET}", "malformed"),
    ],
)
def test_a_faulty_file_is_refused_in_one_line_without_its_keys(
    tmp_path: Path, content: Any, why: str
) -> None:
    path = written(tmp_path, content if isinstance(content, str) else json.dumps(content))

    with pytest.raises(ConfigError, match=why) as refusal:
        read_api_keys(path)

    text = str(refusal.value)
    assert text.startswith(f"--api-key-file {path}: ")
    assert SECRET not in text
    assert "\n" not in text
    assert refusal.value.__cause__ is None


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"k\xff")

    for name, why in (("none", "No such file"), ("latin", "no UTF-8"), (".", "directory")):
        with pytest.raises(ConfigError, match=why):
            read_api_keys(str(tmp_path / name))
