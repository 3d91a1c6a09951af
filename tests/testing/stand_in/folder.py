"""The stand-in's checkpoint folder.

Its layers are the six kinds there are (ratio 0, 128, 4 with hash and with learned routing), its
heads have the published geometry, so that everything the server does to a real model happens
to it too. Being untrained, it writes nonsense, and nothing keeps it from writing on.
"""

import json
from pathlib import Path
from typing import Any

from layers.models.deepseek_v4.config import parse_config
from tests.testing.stand_in.tokenizer import speaking_ids, write_tokenizer
from tests.testing.stand_in.weights import write_weights
from tests.train.geometry import default_config

SEED = 0
CONTEXT_TOKENS = 32768
# Layers that are narrower and no fewer, a quarter of the work: where heads are not what is tested.
NARROW = {
    "hidden_size": 64,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "n_routed_experts": 6,
    "moe_intermediate_size": 32,
    "index_n_heads": 4,
    "index_head_dim": 32,
}
_GENERATION = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 1.0}


def write_stand_in(folder: Path, **changes: object) -> Path:
    """Write the checkpoint into `folder` (about a second) and return the folder.

    changes  fields of `config.json` that are to be others
    """
    raw = {**stand_in_config(), **changes}
    for name, value in (("config.json", raw), ("generation_config.json", _GENERATION)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    tokenizer = write_tokenizer(folder, max_tokens=CONTEXT_TOKENS)
    write_weights(
        folder / "model.safetensors",
        parse_config(raw, _GENERATION),
        seed=SEED,
        speaking=speaking_ids(tokenizer),
    )
    return folder


def stand_in_config() -> dict[str, Any]:
    """Return the stand-in's `config.json`: the default model's, but for its sizes and formats."""
    return {
        **default_config(),
        "vocab_size": 512,
        "moe_intermediate_size": 128,
        "index_n_heads": 64,
        "hc_sinkhorn_iters": 20,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": CONTEXT_TOKENS // 16,
        },
        "expert_dtype": "fp4",
    }
