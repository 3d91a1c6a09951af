"""Fields that families with windows share."""

from typing import Any

import pytest

from layers.models.attention_fields import (
    read_heads,
    read_sliding,
    require_fixed,
    text_architectures,
)
from layers.models.json_fields import ConfigFault

HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10}


def test_heads_are_read_and_share_keys_evenly() -> None:
    assert read_heads(HEADS) == (6, 2, 10)
    for changes, message in (
        ({"num_key_value_heads": 4}, "num_key_value_heads must divide num_attention_heads 6"),
        ({"head_dim": 9}, "head_dim must be even"),
        ({"head_dim": None}, "head_dim must be an integer"),
    ):
        with pytest.raises(ConfigFault, match=message):
            read_heads(HEADS | changes)


def test_the_last_of_so_many_layers_attends_everything() -> None:
    assert read_sliding({}, 5, every=3) == (True, True, False, True, True)
    given: dict[str, Any] = {"layer_types": ["full_attention", "sliding_attention"]}
    assert read_sliding(given, 2, every=3) == (False, True)
    assert read_sliding({}, 2, every=3) == (True, True)
    with pytest.raises(ConfigFault, match="layer_types must name 3 layers, got 2"):
        read_sliding(given, 3, every=3)


def test_other_values_than_are_computed_are_refused() -> None:
    require_fixed({"bias": False}, (("bias", (False,)), ("cap", (None,))))
    with pytest.raises(ConfigFault, match="cap must be"):
        require_fixed({"cap": 2.0}, (("cap", (None,)),))


def test_only_models_that_generate_text_are_served() -> None:
    assert text_architectures({}, "A") == ()
    assert text_architectures({"architectures": ["A"]}, "A") == ("A",)
    with pytest.raises(ConfigFault, match="architectures must be A, got B"):
        text_architectures({"architectures": ["B"]}, "A")
