"""The stand-in's folder is an ordinary checkpoint, with every kind of layer."""

import json
from pathlib import Path

from layers.models.deepseek_v4.config import load_config, resolve_record_format
from runtime.default_model.folder import FILES


def test_the_folder_is_an_ordinary_checkpoint(stand_in: Path) -> None:
    config = load_config(stand_in)

    assert {path.name for path in stand_in.iterdir()} == set(FILES)
    assert resolve_record_format(config, "auto", "float32") == "fp8"
    generation = json.loads((stand_in / "generation_config.json").read_text("utf-8"))
    assert (generation["eos_token_id"], generation["temperature"]) == (1, 1.0)


def test_every_kind_of_layer_is_there(stand_in: Path) -> None:
    config = load_config(stand_in)

    kinds = {
        (ratio, layer < config.num_hash_layers)
        for layer, ratio in enumerate(config.compress_ratios)
    }
    assert kinds == {(ratio, hashed) for ratio in (0, 4, 128) for hashed in (True, False)}
    assert config.rope_scaling is not None
    assert config.max_position_embeddings == 32768
