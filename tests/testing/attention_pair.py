"""Attention of one layer of each kind, twice: of the reference, and over a fused step."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from jit_kernels.out_rope_quant import out_rope_quant
from jit_kernels.q_norm_rope import q_norm_rope
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rope
from jit_kernels.tile_linear import tile_linear, tile_linear_grouped
from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.reference_attention import Attention
from layers.parallel.shares import Shards
from layers.steps.contract import FoldWeights, FusedStep, PoolingWeights
from layers.steps.decode_step import DecodeStep
from layers.steps.forward_batch import ForwardBatch
from layers.steps.reference.attention_plan import plan_attention
from mem_cache.pools import KvPools
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.direct import Direct
from tests.testing.tiny_model import PACKED, randomise

StepMaker = Callable[[ForwardBatch, KvPools, ModelConfig, RopeFrequencies], FusedStep]

LAYERS = (0, 4, 128)
CONFIG = dataclasses.replace(
    PACKED,
    hidden_size=128,
    num_hidden_layers=len(LAYERS),
    compress_ratios=LAYERS,
    num_attention_heads=2,
    q_lora_rank=128,
    o_lora_rank=64,
)


class ReferenceLayers:
    """Attention layers side by side: each sees the embedding of the tokens, none another one."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.rope = RopeFrequencies(config, device)
        self.layers = [
            Attention(config, layer, shards=Shards(), dtype=torch.bfloat16, device=device)
            for layer in range(config.num_hidden_layers)
        ]
        self.weights = [randomise(layer.named_weights("")) for layer in self.layers]
        self.embedding = torch.randn(config.vocab_size, config.hidden_size, device=device)

    def hidden(self, batch: ForwardBatch) -> Tensor:
        """Return the input of every layer, [T, d] bfloat16."""
        return self.embedding.index_select(0, batch.input_ids).to(torch.bfloat16)

    def forward(self, batch: ForwardBatch, pools: KvPools) -> Tensor:
        """Return what the layers give, [T, L, d] float32."""
        plan = plan_attention(batch, pools.spec, self.config, self.rope)
        x = self.hidden(batch)
        return torch.stack([layer(x, plan, pools) for layer in self.layers], 1).float()


class FusedLayers:
    """The layers of a reference over steps that `make` makes, projections in the same products."""

    def __init__(self, reference: ReferenceLayers, make: StepMaker) -> None:
        self.config, self._reference, self._make = reference.config, reference, make

    def forward(self, batch: ForwardBatch, pools: KvPools) -> Tensor:
        """Return what the layers give, [T, L, d] float32."""
        step = self._make(batch, pools, self.config, self._reference.rope)
        x = self._reference.hidden(batch)
        assert torch.equal(step.input_ids, batch.input_ids)
        each = [self._layer(layer, x, step) for layer in range(self.config.num_hidden_layers)]
        return torch.stack(each, 1).float()

    def _layer(self, layer: int, x: Tensor, step: FusedStep) -> Tensor:
        config, weights = self.config, self._reference.weights[layer]
        ratio, eps, tokens = config.compress_ratios[layer], config.rms_norm_eps, x.shape[0]

        def product(rows: Tensor, *names: str) -> tuple[Tensor, ...]:
            parts = [weights[f"{name}.weight"] for name in names]
            found = tile_linear(rows, torch.cat(parts), out_dtype=torch.float32)
            return found.split([part.shape[0] for part in parts], 1)

        choosing = ratio == 4
        down = product(x, "wq_a", "wkv", *["indexer.weights_proj"] * choosing)
        latent = rms_norm(down[0], weights["q_norm.weight"], eps=eps, out_dtype=x.dtype)
        up = product(latent, "wq_b", *["indexer.wq_b"] * choosing)
        q = up[0].reshape(tokens, config.num_attention_heads, config.head_dim)
        rotation = step.rotation(compressed=ratio > 0)
        q = q_norm_rope(q, rotation, eps=eps, out_dtype=x.dtype)
        step.store_window(layer, down[1], weights["kv_norm.weight"])
        if ratio == 4:
            branches = ("compressor", "indexer.compressor")
            names = [f"{branch}.{part}" for branch in branches for part in ("wkv", "wgate")]
            rows = torch.cat(product(x, *names), 1)
            step.pool(layer, rows, pooling_weights(weights))
            queries = up[1].view(tokens, config.index_n_heads, config.index_head_dim)
            step.score(layer, queries, down[2])
            step.choose(layer)
        elif ratio == 128:
            rows = torch.cat(product(x, "compressor.wkv", "compressor.wgate"), 1)
            ape = weights["compressor.ape"]
            ape = torch.cat((torch.zeros_like(ape), ape), 1)
            step.fold(layer, rows, FoldWeights(ape, weights["compressor.norm.weight"]))
        attended = step.attend(layer, q, weights["attn_sink"])
        if isinstance(step, DecodeStep):
            # Nothing is written, so that it may be attended again, as the network does it.
            groups = config.o_groups
            got = step.attend_quant(layer, q, weights["attn_sink"], groups=groups)
            for mine, other in zip(
                got, out_rope_quant(attended, rotation, groups=groups), strict=True
            ):
                assert_same_bits(mine, other, what=f"layer {layer}")
        out = rope(attended.contiguous(), rotation, inverse=True)
        grouped = weights["wo_a.weight"].view(config.o_groups, config.o_lora_rank, -1)
        y = tile_linear_grouped(out.view(tokens, config.o_groups, -1), grouped)
        return tile_linear(y, weights["wo_b.weight"])


def pooling_weights(weights: dict[str, Tensor]) -> PoolingWeights:
    """Return the weights of a layer that compresses by 4, by their names in files."""
    ape, index_ape = weights["compressor.ape"], weights["indexer.compressor.ape"]
    parts = (torch.zeros_like(ape), ape, torch.zeros_like(index_ape), index_ape)
    return PoolingWeights(
        torch.cat(parts, 1),
        weights["compressor.norm.weight"],
        weights["indexer.compressor.norm.weight"],
    )


def pair(make: StepMaker, device: torch.device, **sizes: int) -> tuple[Direct, Direct]:
    """Return (reference, fused) with the same weights, pools poisoned.

    sizes  replace fields of CONFIG
    """
    config = dataclasses.replace(CONFIG, **sizes)  # type: ignore[arg-type]
    reference = ReferenceLayers(config, device)
    both = (
        Direct(reference, "fp8", device=device),
        Direct(FusedLayers(reference, make), "fp8", device=device),
    )
    for direct in both:
        direct.poison()
    return both


def assert_alike(got: Tensor, want: Tensor, *, even: float = 0.01) -> None:
    """Compare what layers give. Attention rounds to bfloat16, sums in an order of its own.

    even  share of tokens for which the layer that chooses blocks may choose another one, since
          two score alike but for roundings; they are off by what one block of many gives
    """
    assert want.isfinite().all()
    for layer, ratio in enumerate(LAYERS):
        mine, goal = got[:, layer], want[:, layer]
        if ratio == 4:
            assert_close(mine, goal, Bounds(atol=0.5), what="blocks chosen")
            least_off = (mine - goal).abs().amax(-1).argsort()
            kept = least_off[: len(least_off) - int(even * len(least_off))]
            mine, goal = mine[kept], goal[kept]
        assert_close(mine, goal, Bounds(atol=0.1, rms=0.02), what=f"blocks of {ratio}")


def assert_same_pools(got: Direct, want: Direct) -> None:
    """Compare all that the pools hold, what nobody wrote included.

    Sums in another order move a number over an edge between two codes now and then: in a page of
    bytes less than half a row may differ.
    """
    mine, pools = got.pools.tensors(), want.pools
    layouts = {
        "swa": pools.swa_layout,
        "c4": pools.c4_layout,
        "indexer": pools.indexer_layout,
        "c128": pools.c128_layout,
    }
    for name, tensor in pools.tensors().items():
        if name in layouts:
            differing = (mine[name] != tensor).sum(-1)
            assert int(differing.max()) < layouts[name].row_bytes // 2, name
        else:
            assert_close(mine[name], tensor, Bounds(atol=1e-3, rtol=1e-4), what=name)
