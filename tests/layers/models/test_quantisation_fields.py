"""How files hold weights: plainly, or as Qwen3-FP8 and DeepSeek V3 are published."""

from typing import Any

import pytest

from layers.models.json_fields import ConfigFault
from layers.models.quantisation_fields import check_quantisation

# Source: Qwen3-8B-FP8.
QWEN3: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"],
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}


def test_plain_numbers_and_blocks_of_fp8_are_read() -> None:
    check_quantisation({})
    check_quantisation({"quantization_config": None})
    check_quantisation({"quantization_config": QWEN3})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quant_method": "awq", "bits": 4}, "'awq' is not read"),
        ({"quant_method": "gptq", "bits": 4}, "'gptq' is not read"),
        ({"quant_method": "compressed-tensors"}, "'compressed-tensors' is not read"),
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' is not read"),
        ({"load_in_4bit": True}, "'bitsandbytes' is not read"),
        ({**QWEN3, "weight_block_size": None}, "weight_block_size must be"),
        ({"quant_method": "fp8"}, "weight_block_size is missing"),
        ({**QWEN3, "fmt": "e5m2"}, "fmt must be"),
    ],
)
def test_others_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigFault, match=message):
        check_quantisation({"quantization_config": fields})
