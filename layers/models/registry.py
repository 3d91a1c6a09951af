"""Models by the `model_type` of their config.json.

A family is a module with a function `read`; nothing is assumed from a model's name, and a type that
is not listed is refused.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from layers.models.config_files import read_files
from layers.models.contract import Model
from layers.models.json_fields import ConfigFault, present

__all__ = ["FAMILIES", "MOST_LAYERS", "read_model"]

# Layers are objects: many more would never be made, and no published model has a tenth of it.
MOST_LAYERS = 2048

# model_type -> "module:function"; the function takes config.json, generation_config.json and the
# entries that override the former, all parsed, and returns a Model.
FAMILIES: dict[str, str] = {
    "deepseek_v4": "layers.models.deepseek_v4.model:read",
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe"), "layers.models.gqa.model:read"
    ),
    "gemma3_text": "layers.models.gemma3.model:read",
    "gpt_oss": "layers.models.gpt_oss.model:read",
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32"), "layers.models.mla.model:read"),
}


def read_model(folder: Path, override: str | None = None) -> Model:
    """Read `config.json` (and `generation_config.json`, if there) of a checkpoint folder.

    override  "num_hidden_layers=8,index_topk=64": replaces entries of config.json; the values
              are JSON, the keys must be in the file or be known fields
    Raises ConfigFault, naming the field, for whatever cannot be run.
    """
    raw, generation, entries = read_files(folder, override)
    kind: Any = present(raw | entries, "model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        known = " or ".join(FAMILIES)
        code = "; the code that auto_map names is never run" if raw.get("auto_map") else ""
        raise ConfigFault(f"model_type must be {known}, got {kind!r}{code}")
    layers: Any = (raw | entries).get("num_hidden_layers")
    if type(layers) is int and layers > MOST_LAYERS:
        raise ConfigFault(f"num_hidden_layers must be at most {MOST_LAYERS}, got {layers}")
    module, _, function = FAMILIES[kind].partition(":")
    read: Callable[..., Model] = getattr(importlib.import_module(module), function)
    return read(raw, generation, entries)
