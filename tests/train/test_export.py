"""The published form of a trained network."""

import json
from pathlib import Path

from layers.models.deepseek_v4.config import load_config, parse_config
from layers.weights.checkpoint import Checkpoint
from tests.testing.recall_rows import small_config
from tests.train.export import TOKENIZER_FILES, model_card, write_checkpoint
from tests.train.geometry import default_config
from tests.train.parameters import first_parameters


def test_a_checkpoint_has_every_file_and_the_published_dtypes(tmp_path: Path) -> None:
    raw, words = small_config(), tmp_path / "words"
    words.mkdir()
    for name in TOKENIZER_FILES:
        (words / name).write_text(f"this is {name}")
    folder = tmp_path / "model"

    parameters = first_parameters(parse_config(raw), seed=0)
    write_checkpoint(folder, parameters, raw, tokenizer=words, measured={"facts_2k": "99 %"})

    assert load_config(folder) == parse_config(raw, {"eos_token_id": 1})
    assert json.loads((folder / "generation_config.json").read_text())["do_sample"] is False
    assert (folder / "tokenizer.json").read_text() == "this is tokenizer.json"
    card = (folder / "MODEL_CARD.md").read_text()
    assert "facts within 2k tokens | 99 %" in card
    with Checkpoint(folder) as checkpoint:
        dtypes = {name: header.dtype for name, header in checkpoint.headers.items()}
    expected = {
        "layers.1.attn.wkv.weight": "F8_E4M3",
        "layers.1.attn.wkv.scale": "F8_E8M0",
        "layers.1.ffn.experts.0.w1.weight": "F8_E4M3",
        "layers.1.attn.compressor.wkv.weight": "BF16",
        "layers.1.attn.compressor.ape": "F32",
        "layers.1.hc_attn_fn": "F32",
        "layers.0.ffn.gate.tid2eid": "I64",
        "layers.1.ffn.gate.bias": "F32",
        "embed.weight": "BF16",
    }
    assert {name: dtypes[name] for name in expected} == expected


def test_a_card_says_what_was_not_measured() -> None:
    card = model_card({"tokens": "5"})

    assert "$" not in card
    assert "facts at 8k tokens | not measured" in card


def test_the_default_geometry_has_every_kind_of_layer_and_fits() -> None:
    config = parse_config(default_config())

    assert set(config.compress_ratios) == {0, 4, 128}
    hashed = set(config.compress_ratios[: config.num_hash_layers])
    assert hashed == set(config.compress_ratios[config.num_hash_layers :])
    numbers = sum(tensor.numel() for tensor in first_parameters(config, 0).values())
    assert 15e6 < numbers < 22e6
