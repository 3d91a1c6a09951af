"""Attention of one layer of each kind over two steps: the reference's, and another one's."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from layers.blocks.rope import RopeFrequencies
from layers.kinds import Kinds, PlainKinds
from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.model import angles
from layers.models.deepseek_v4.network import Attention
from layers.models.deepseek_v4.pools import KvPools
from layers.parallel.ranks import OneRank
from layers.steps.contract import Step, StepSizes
from layers.steps.forward_batch import ForwardBatch
from layers.steps.reference.reference_step import ReferenceStep
from tests.testing.compare import Bounds, assert_close
from tests.testing.direct import Direct
from tests.testing.tiny_model import PACKED, randomise

StepMaker = Callable[[ForwardBatch, KvPools, StepSizes, RopeFrequencies], Step]

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


class AttentionLayers:
    """Attention layers side by side: each sees the embedding of the tokens, none another one."""

    def __init__(
        self, config: ModelConfig, device: torch.device, kinds: Kinds | None = None
    ) -> None:
        """Make them of `kinds`, plain bfloat16 by default; weights that are tensors are random."""
        self.config, self.rope = config, angles(config, device)
        self.sizes = StepSizes(config.index_topk, config.rms_norm_eps)
        kinds = kinds or PlainKinds(device, torch.bfloat16)
        self.layers = [
            Attention(config, layer, kinds, OneRank()) for layer in range(config.num_hidden_layers)
        ]
        for layer in self.layers:
            randomise(layer.named_weights(""))
        self.embedding = torch.randn(config.vocab_size, config.hidden_size, device=device)

    def over(self, step: Step) -> Tensor:
        """Return what the layers give over a step, [T, L, d] float32."""
        x = self.embedding.index_select(0, step.input_ids).to(torch.bfloat16)
        each = [self._layer(i, layer, x, step) for i, layer in enumerate(self.layers)]
        return torch.stack(each, 1).float()

    def _layer(self, i: int, layer: Attention, x: Tensor, step: Step) -> Tensor:
        q = layer.project(x, step)
        return layer.finish(step.attend(i, q, layer.sink).contiguous(), step)


class LayersOver:
    """The layers over steps of one kind; what `Direct` drives."""

    def __init__(self, layers: AttentionLayers, make: StepMaker) -> None:
        self.config, self._layers, self._make = layers.config, layers, make

    def prefill(self, batch: ForwardBatch, pools: KvPools) -> Tensor:
        """Return what the layers give, [T, L, d] float32."""
        step = self._make(batch, pools, self._layers.sizes, self._layers.rope)
        assert torch.equal(step.input_ids, batch.input_ids)
        return self._layers.over(step)


def pair(make: StepMaker, device: torch.device, **sizes: int) -> tuple[Direct, Direct]:
    """Return (reference, fused) with the same weights, pools poisoned.

    sizes  replace fields of CONFIG
    """
    config = dataclasses.replace(CONFIG, **sizes)  # type: ignore[arg-type]
    layers = AttentionLayers(config, device)
    both = (
        Direct(LayersOver(layers, ReferenceStep), "fp8", device=device),
        Direct(LayersOver(layers, make), "fp8", device=device),
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
