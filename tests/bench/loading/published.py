"""The tensors of a published V4-Flash checkpoint: names, shapes, dtypes, and their files.

Names and shapes of the network are those that the loader asks for; draft heads are written here,
since nothing loads them.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from layers.models.deepseek_v4.config import ModelConfig, parse_config
from layers.weights.quant import fp4_scale_shape, fp8_scale_shape
from tests.testing.published_tensors import tensor_shapes
from tests.train.storage import stored_as

__all__ = ["DraftHead", "Stored", "config_of", "dealt", "stored_tensors"]

# "mtp" has one stage, of releases up to July 2026; "dspark" three, of those since.
DraftHead = Literal["none", "mtp", "dspark"]
Code = Literal["I8", "F8_E4M3", "F8_E8M0", "BF16", "F32", "I64"]

_CUT = Path(__file__).parents[1] / "network" / "v4_flash_8_layers" / "config.json"
_BYTES: dict[Code, int] = {"I8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F32": 4, "I64": 8}
_PLAIN: dict[str, Code] = {"bf16": "BF16", "f32": "F32", "i64": "I64"}
_FIRST = "layers.0."
_MARKOV_RANK = 256


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file; `dtype` is safetensors' code."""

    name: str
    dtype: Code
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return math.prod(self.shape) * _BYTES[self.dtype]


def config_of(layers: int, experts: int, draft: DraftHead) -> tuple[dict[str, Any], ModelConfig]:
    """Return config.json and what it says: V4-Flash with so many layers and routed experts."""
    raw: dict[str, Any] = json.loads(_CUT.read_text(encoding="utf-8"))
    del raw["_note"]
    stages = {"none": 0, "mtp": 1, "dspark": 3}[draft]
    ratios = [0 if layer < 2 else (4, 128)[layer % 2] for layer in range(layers)]
    raw |= {
        "num_hidden_layers": layers,
        "n_routed_experts": experts,
        "num_nextn_predict_layers": stages,
        "compress_ratios": [*ratios, *[0] * stages],
    }
    return raw, parse_config(raw)


def stored_tensors(config: ModelConfig, draft: DraftHead) -> list[Stored]:
    """Return all tensors in the order of files: embedding, layers, head, draft head."""
    shapes = tensor_shapes(config)
    network = [one for name, shape in shapes.items() for one in _stored(name, shape)]
    first = {
        name.removeprefix(_FIRST): shape
        for name, shape in shapes.items()
        if name.startswith(_FIRST)
    }
    heads = {name: shape for name, shape in shapes.items() if name.startswith("hc_head_")}
    drafts = _draft_shapes(config, draft, first, heads)
    return network + [one for name, shape in drafts for one in _stored(name, shape)]


def dealt(tensors: Sequence[Stored], shards: int) -> list[list[Stored]]:
    """Return the tensors of each file, about equal in bytes; no more files than tensors."""
    total = sum(tensor.nbytes for tensor in tensors)
    files: list[list[Stored]] = [[] for _ in range(shards)]
    written = 0
    for tensor in tensors:
        files[min(shards - 1, written * shards // total)].append(tensor)
        written += tensor.nbytes
    return [file for file in files if file]


def _draft_shapes(
    config: ModelConfig,
    draft: DraftHead,
    block: dict[str, tuple[int, ...]],
    heads: dict[str, tuple[int, ...]],
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the dense shapes of the stages of a draft head: blocks with learned routing, and more.

    block  shapes of a layer that compresses nothing
    heads  of what mixes streams before the output head
    """
    width = config.hidden_size
    stages = {"none": 0, "mtp": 1, "dspark": 3}[draft]
    for stage in range(stages):
        shapes = {**block, "ffn.gate.bias": (config.n_routed_experts,)}
        shapes.pop("ffn.gate.tid2eid", None)
        if draft == "mtp":
            shapes |= {"e_proj.weight": (width, width), "h_proj.weight": (width, width)}
            shapes |= {"enorm.weight": (width,), "hnorm.weight": (width,)}
        elif stage == 0:
            shapes |= {"main_proj.weight": (width, 3 * width), "main_norm.weight": (width,)}
        if stage == stages - 1:
            shapes |= {"norm.weight": (width,), **heads}
            if draft == "dspark":
                rows = (config.vocab_size, _MARKOV_RANK)
                shapes |= {"markov_w1.weight": rows, "markov_w2.weight": rows}
                shapes |= {"confidence_head.weight": (1, width + _MARKOV_RANK)}
        for name, shape in shapes.items():
            yield f"mtp.{stage}.{name}", shape


def _stored(name: str, shape: tuple[int, ...]) -> Iterator[Stored]:
    """Yield what a file holds of a tensor: its numbers, or codes and scales."""
    scale = name.removesuffix(".weight") + ".scale"
    form = stored_as(name)
    if form == "fp8" or (name.endswith(("_proj.weight",)) and name.startswith("mtp.")):
        rows, columns = shape
        if "experts" in name.split("."):
            yield Stored(name, "I8", (rows, columns // 2))
            yield Stored(scale, "F8_E8M0", fp4_scale_shape((rows, columns)))
        else:
            yield Stored(name, "F8_E4M3", shape)
            yield Stored(scale, "F8_E8M0", fp8_scale_shape((rows, columns)))
    else:
        yield Stored(name, _PLAIN[form], shape)
