"""A family of one file: two dense layers that attend everything, no window, no compression.

It has what `layers.models.contract` asks for and nothing else: where the runtime takes for granted
what only V4 has, it fails here. `python -m tests.testing.toy_family` serves it.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import runtime.scheduler.process
from jit_kernels.rope import rope, rotations
from layers.blocks.norm import RmsNorm
from layers.blocks.rope import frequencies
from layers.linear.contract import Named
from layers.linear.plain import PlainLinear
from layers.models.contract import ModelFacts, Settings
from layers.models.json_fields import positive_int, require
from layers.models.registry import FAMILIES
from layers.parallel.ranks import Ranks
from layers.parallel.shares import UnevenShares
from layers.steps.forward_batch import FedTokens, ForwardBatch, Forwarded, finite_rows
from layers.steps.step_tokens import StepTokens
from mem_cache.spec import CacheSpec, PoolSizes, TreeSpec
from runtime.config import ServerConfig
from runtime.ipc import Addresses
from runtime.launch import serve
from tests.testing.stand_in.tokenizer import write_tokenizer

MODEL_TYPE = "toy"
CONFIG = {"model_type": MODEL_TYPE, "vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2}
HEADS, KEY_HEADS, HEAD_DIM, INNER = 4, 2, 16, 48
EPS, THETA, CONTEXT = 1e-6, 10000.0, 4096


def register() -> None:
    """Have the registry know the family, in this process."""
    FAMILIES[MODEL_TYPE] = "tests.testing.toy_family:read"


def run_scheduler(config: ServerConfig, addresses: Addresses) -> None:
    """Serve, as `runtime.scheduler.process.run_scheduler` does."""
    register()
    runtime.scheduler.process.run_scheduler(config, addresses)


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "Toy":
    """Return the model of parsed files. Raises ConfigFault."""
    raw = raw | override
    require(raw, "num_hidden_layers", (2,))
    end = generation.get("eos_token_id", 1)
    return Toy(positive_int(raw, "vocab_size"), positive_int(raw, "hidden_size"), (end,))


@dataclass(frozen=True, slots=True)
class Toy:
    """A `Model`."""

    vocab: int
    width: int
    end_ids: tuple[int, ...]

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            MODEL_TYPE, ("ToyForCausalLM",), 2, self.width, self.vocab, CONTEXT, self.end_ids
        )

    def check_cuda(self) -> None:
        """Let a CUDA device be asked for: torch knows all ops."""

    def smaller(self, settings: Settings) -> str | None:
        """Return no advice."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "ToyNetwork":
        assert settings.experts == "auto"
        if ranks is not None and ranks.shares.world > 1:
            raise UnevenShares("this family is not shared")
        return ToyNetwork(self, device)


class ToyPools:
    """Keys and values of each page's tokens, [L, pages + 1, page, 2, KEY_HEADS, HEAD_DIM]."""

    def __init__(self, page_size: int, sizes: PoolSizes, device: torch.device) -> None:
        shape = (2, sizes.full_pages + 1, page_size, 2, KEY_HEADS, HEAD_DIM)
        self.pages = torch.full(shape, torch.nan, device=device)

    @property
    def bytes(self) -> int:
        return self.pages.nbytes

    def tensors(self) -> Mapping[str, Tensor]:
        return {"pages": self.pages}

    def copy_full_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self.pages[:, destination] = self.pages[:, source]

    def copy_swa_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy nothing: there are no windows."""

    def copy_states(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy nothing: there is no state."""


class ToyLayer:
    """Attention over all tokens before, then a gated product; each with a norm and a residual."""

    def __init__(self, width: int, device: torch.device) -> None:
        def linear(inputs: int, **parts: int) -> PlainLinear:
            return PlainLinear(inputs, parts, dtype=torch.float32, device=device)

        keys = KEY_HEADS * HEAD_DIM
        self.attention_norm = RmsNorm(width, eps=EPS, name="attn_norm", device=device)
        self.qkv = linear(width, wq=HEADS * HEAD_DIM, wk=keys, wv=keys)
        self.wo = linear(HEADS * HEAD_DIM, wo=width)
        self.mlp_norm = RmsNorm(width, eps=EPS, name="ffn_norm", device=device)
        self.gate_up = linear(width, w1=INNER, w3=INNER)
        self.down = linear(INNER, w2=width)

    def parts(self) -> Sequence[RmsNorm | PlainLinear]:
        return (
            *(self.attention_norm, self.qkv, self.wo),
            *(self.mlp_norm, self.gate_up, self.down),
        )


class ToyNetwork:
    """A `Network`."""

    def __init__(self, model: Toy, device: torch.device) -> None:
        self._device, self._tree = device, TreeSpec(window=1)
        vocab, width = model.vocab, model.width
        self._embedding = torch.zeros((vocab, width), device=device)
        self._layers = [ToyLayer(width, device) for _ in range(2)]
        self._norm = RmsNorm(width, eps=EPS, name="norm", device=device)
        self._head = PlainLinear(width, {"head": vocab}, dtype=torch.float32, device=device)
        self._angles = frequencies(HEAD_DIM, THETA, None).repeat_interleave(2).to(device)

    @property
    def cache(self) -> CacheSpec:
        page = self._tree.page_size * 2 * 2 * KEY_HEADS * HEAD_DIM * 4
        return CacheSpec(
            self._tree,
            record_format="fp32",
            full_page_bytes=page,
            swa_page_bytes=0,
            ring_bytes=0,
            replay_tokens=0,
        )

    @property
    def facts(self) -> Mapping[str, str]:
        return {"dtype": "float32", "record_format": "fp32"}

    def named_weights(self) -> Named:
        yield "embed.weight", self._embedding
        for i, layer in enumerate(self._layers):
            for part in layer.parts():
                yield from part.named_weights(f"layers.{i}.")
        yield from self._norm.named_weights("")
        yield from self._head.named_weights("")

    def pools(self, sizes: PoolSizes) -> ToyPools:
        return ToyPools(self._tree.page_size, sizes, self._device)

    @torch.inference_mode()
    def prefill(
        self,
        batch: ForwardBatch,
        pools: ToyPools,
        *,
        fed: FedTokens | None = None,
        halfway: Callable[[], None] | None = None,
    ) -> Forwarded:
        if fed is not None:
            batch.input_ids.index_copy_(0, fed.at, fed.ids)
        tokens = StepTokens(batch)
        turns = rotations(tokens.position, self._angles)
        x = self._embedding.index_select(0, batch.input_ids)
        for i, layer in enumerate(self._layers):
            x = x + self._attended(layer, x, tokens, turns, pools.pages[i])
            hidden = layer.gate_up(layer.gate_up.rows(x, layer.mlp_norm))
            x = x + layer.down(layer.down.gated(hidden, limit=1e9))
            if halfway is not None and i == 0:
                halfway()
        finite = finite_rows(x.isfinite().all(1), tokens.row, batch.chunk_len)
        last = x.index_select(0, batch.logit_tokens)
        return Forwarded(self._head(self._head.rows(last, self._norm)), finite)

    def _attended(
        self, layer: ToyLayer, x: Tensor, tokens: StepTokens, turns: Tensor, pages: Tensor
    ) -> Tensor:
        batch, keys = tokens.batch, KEY_HEADS * HEAD_DIM
        made = layer.qkv(layer.qkv.rows(x, layer.attention_norm))
        q, k, v = made.split([HEADS * HEAD_DIM, keys, keys], 1)
        q = rope(q.reshape(-1, HEADS, HEAD_DIM).contiguous(), turns)
        k = rope(k.reshape(-1, KEY_HEADS, HEAD_DIM).contiguous(), turns)
        size = self._tree.page_size
        page = batch.page_table[tokens.row, tokens.position // size].long()
        pages[page, tokens.position % size] = torch.stack((k, v.reshape_as(k)), 1)
        out = torch.empty_like(q)
        for t in range(tokens.count):
            row, seen = int(tokens.row[t]), int(tokens.position[t]) + 1
            held = pages[batch.page_table[row, : -(-seen // size)].long()].flatten(0, 1)[:seen]
            both = held.repeat_interleave(HEADS // KEY_HEADS, 2)
            scores = torch.einsum("hd,shd->hs", q[t], both[:, 0]) * HEAD_DIM**-0.5
            out[t] = torch.einsum("hs,shd->hd", scores.softmax(1), both[:, 1])
        return layer.wo(layer.wo.rows(out.flatten(1)))


def write_folder(folder: Path) -> Path:
    """Write a checkpoint folder without weights, for --load-format dummy."""
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write_tokenizer(folder, max_tokens=CONTEXT)
    return folder


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], scheduler_main="tests.testing.toy_family:run_scheduler"))
