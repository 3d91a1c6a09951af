"""`quantization_config` of a config.json: how files hold weights."""

from typing import Any

from layers.models.json_fields import ConfigFault, json_object, require

__all__ = ["check_quantisation"]

_FP8: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("fmt", ("e4m3", None)),
    ("weight_block_size", ([128, 128],)),
)


def check_quantisation(raw: dict[str, Any]) -> None:
    """Raise ConfigFault unless weights are plain numbers, or fp8 in blocks of 128 x 128.

    Which of them are fp8 the files say tensor by tensor; `modules_to_not_convert` is not needed.
    """
    if raw.get("quantization_config") is None:
        return
    fields = json_object(raw["quantization_config"], "quantization_config")
    method = fields.get("quant_method")
    if method != "fp8":
        known = {"load_in_4bit", "load_in_8bit"} & fields.keys()
        named = repr("bitsandbytes" if method is None and known else method)
        raise ConfigFault(
            f"quantization_config.quant_method {named} is not read in this family: serve the "
            "checkpoint in bfloat16, or in fp8 by blocks of 128 x 128"
        )
    for name, allowed in _FP8:
        if name in fields or None not in allowed:
            require(fields, name, allowed, "quantization_config.")
