"""Families by model_type."""

import json
from pathlib import Path
from typing import Any

import pytest

from layers.models.deepseek_v4.model import V4Model
from layers.models.json_fields import ConfigFault
from layers.models.registry import FAMILIES, read_model
from tests.testing.stand_in.folder import stand_in_config


def _folder(folder: Path, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_checkpoint_is_read_by_its_family(tmp_path: Path) -> None:
    model = read_model(_folder(tmp_path, **stand_in_config()), "hidden_size=320")

    assert isinstance(model, V4Model)
    assert model.facts.model_type == "deepseek_v4"
    assert model.facts.hidden_size == 320


def read_toy(*files: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return what a family is given: two files, and the override."""
    return files


def test_a_family_is_a_line_of_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path, model_type="toy", width=4)
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}', encoding="utf-8")
    with pytest.raises(ConfigFault, match=r"^model_type must be deepseek_v4 or .*, got 'toy'"):
        read_model(folder)
    monkeypatch.setitem(FAMILIES, "toy", f"{__name__}:read_toy")

    found: Any = read_model(folder, "width=6")

    assert found == ({"model_type": "toy", "width": 4}, {"eos_token_id": 7}, {"width": 6})


def test_an_override_may_say_the_family(tmp_path: Path) -> None:
    config = {**stand_in_config(), "model_type": "another"}

    model = read_model(_folder(tmp_path, **config), 'model_type="deepseek_v4"')

    assert model.facts.model_type == "deepseek_v4"


@pytest.mark.parametrize("kind", ["deepseek_v9", 4, ["deepseek_v4"], ""])
def test_another_type_is_refused(tmp_path: Path, kind: object) -> None:
    with pytest.raises(
        ConfigFault, match=r"^model_type must be deepseek_v4 or llama or [a-z0-9_ ]+, got "
    ):
        read_model(_folder(tmp_path, **{**stand_in_config(), "model_type": kind}))


def test_code_that_a_checkpoint_wants_to_bring_is_refused_by_name(tmp_path: Path) -> None:
    folder = _folder(tmp_path, model_type="mine", auto_map={"AutoModel": "modeling.Model"})

    with pytest.raises(ConfigFault, match="got 'mine'; the code that auto_map names is never run"):
        read_model(folder)


def test_a_missing_type_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigFault, match=r"^model_type is missing$"):
        read_model(_folder(tmp_path, vocab_size=4))


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_layers_beyond_what_can_be_made_are_refused_before_they_are(
    tmp_path: Path, kind: str
) -> None:
    config = {**stand_in_config(), "model_type": kind, "num_hidden_layers": 2**30}

    with pytest.raises(ConfigFault, match=r"^num_hidden_layers must be at most 2048, got"):
        read_model(_folder(tmp_path, **config))
