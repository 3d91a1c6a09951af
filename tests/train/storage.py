"""How each weight is stored in the files, and in what it is computed with."""

from typing import Literal

import torch

Stored = Literal["fp8", "bf16", "f32", "i64"]

_FP8 = frozenset({"wq_a", "wq_b", "wkv", "wo_a", "wo_b", "w1", "w2", "w3"})
_FLOAT32 = frozenset({"attn_sink", "ape", "bias"})
_FIXED = frozenset({"tid2eid", "bias"})
_PLAIN_MATRICES = ("embed.weight", "head.weight", "weights_proj.weight")


def stored_as(name: str) -> Stored:
    """Return the format of the tensor `name` in a published file.

    fp8  e4m3 in blocks of 128 x 128, beside its e8m0 scales
    """
    parts = name.split(".")
    leaf = parts[-1]
    if leaf == "tid2eid":
        return "i64"
    if leaf.startswith("hc_") or leaf in _FLOAT32:
        return "f32"
    matrix = len(parts) > 1 and parts[-2] in _FP8 and "compressor" not in parts
    return "fp8" if matrix else "bf16"


def is_trained(name: str) -> bool:
    """Say whether gradients move `name`: not routing tables, nor the routers' biases."""
    return name.rsplit(".", 1)[-1] not in _FIXED


def computed_in(name: str, dtype: torch.dtype) -> torch.dtype:
    """Return what `name` is multiplied in, where the network's own precision is `dtype`.

    Compressors, routers, norms, sinks and stream mixing are float32 in any case.
    """
    if stored_as(name) == "fp8" or name.endswith(_PLAIN_MATRICES):
        return dtype
    return torch.int64 if name.endswith(".tid2eid") else torch.float32
