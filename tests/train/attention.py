"""Attention of one layer in a form that learns; it must equal `ReferenceV4`'s."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from jit_kernels.rms_norm.reference import rms_norm
from layers.models.deepseek_v4.config import ModelConfig
from tests.train.attention_core import CoreShape, attend
from tests.train.compressor import compress, rotate
from tests.train.fake_quant import round_index_keys, round_index_queries, round_records
from tests.train.indexer import IndexInputs, choose, divergence, recall
from tests.train.mode import Mode
from tests.train.named import Named
from tests.train.places import Places
from tests.train.regions import Regions


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The indexer's loss in a layer, and the recall of attention; None where not asked for."""

    loss: Tensor | None = None
    recall: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """One layer's attention: its constants, the mode, and how regions are run."""

    config: ModelConfig
    ratio: int
    mode: Mode
    run: Regions

    def __call__(self, x: Tensor, weights: Named, places: Places) -> tuple[Tensor, IndexReport]:
        """Return ([B * T, d] in the dtype of `x`, what the indexer did).

        x  [B * T, d] normed input
        """
        config, run = self.config, self.run
        heads, width, eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
        rotation = places.compressed if self.ratio else places.plain
        low = F.linear(x, weights["wq_a.weight"])
        low = run(rms_norm)(low, weights["q_norm.weight"], eps, x.dtype)
        q = F.linear(low, weights["wq_b.weight"]).view(-1, heads, width)
        q = run(_norm_and_rotate)(q, None, rotation, eps, x.dtype)
        kv = F.linear(x, weights["wkv.weight"]).unsqueeze(1)
        kv = run(_norm_and_rotate)(kv, weights["kv_norm.weight"], rotation, eps, torch.float32)
        kv = self._stored(kv[:, 0], x.dtype)
        blocks = chosen = inputs = None
        ratio = 0 if self.ratio in self.mode.hidden else self.ratio
        if ratio:
            part = weights.under("compressor.")
            blocks = compress(x, part, places, ratio=ratio, eps=eps, run=run)
            blocks = self._stored(blocks, x.dtype).view(places.rows, -1, width)
        if ratio == 4 and self._needs_indexer():
            inputs = self._index_inputs(x.detach(), low.detach(), weights, places)
            if self.mode.select or self.mode.measure:
                chosen = choose(inputs, config.index_topk, run)
        out, mass = attend(
            q.view(places.rows, places.length, heads, width),
            kv.view(places.rows, places.length, width),
            blocks,
            weights["attn_sink"],
            chosen=None if self.mode.measure else chosen,
            shape=CoreShape(config.sliding_window, ratio, width**-0.5, inputs is not None),
            run=run,
        )
        report = IndexReport()
        if inputs is not None and mass is not None:
            report = self._report(inputs, mass, chosen)
        out = run(rotate)(out.flatten(0, 1), rotation, True)
        return self._projected(out, weights), report

    def _needs_indexer(self) -> bool:
        return self.mode.select or self.mode.train_indexer or self.mode.measure

    def _stored(self, records: Tensor, dtype: torch.dtype) -> Tensor:
        """Return records [M, D] float32 as attention reads them."""
        if self.mode.round_records:
            records = round_records(records, self.config.qk_rope_head_dim)
        return records.to(dtype)

    def _index_inputs(self, x: Tensor, low: Tensor, weights: Named, places: Places) -> IndexInputs:
        config, part = self.config, weights.under("indexer.")
        heads, width = config.index_n_heads, config.index_head_dim
        q = F.linear(low, part["wq_b.weight"]).view(-1, heads, width).to(torch.float32)
        q = self.run(rotate)(q, places.compressed)
        share = F.linear(x, part["weights_proj.weight"]).to(torch.float32)
        keys = compress(
            x,
            part.under("compressor."),
            places,
            ratio=4,
            eps=config.rms_norm_eps,
            run=self.run,
        )
        if self.mode.round_records:
            q, keys = round_index_queries(q), round_index_keys(keys)
        rows = (places.rows, places.length, heads)
        return IndexInputs(
            q=q.to(x.dtype).view(*rows, width),
            keys=keys.to(x.dtype).view(places.rows, -1, width),
            weights=(share * (heads**-0.5 * width**-0.5)).view(rows),
            ratio=4,
        )

    def _report(self, inputs: IndexInputs, mass: Tensor, chosen: Tensor | None) -> IndexReport:
        mode = self.mode
        loss = recalled = None
        if mode.measure and chosen is not None:
            recalled = recall(mass, chosen, 4, self.config.index_topk)
            chosen = None
        if mode.train_indexer:
            loss = divergence(inputs, mass, chosen, self.run)
        return IndexReport(loss, recalled)

    def _projected(self, out: Tensor, weights: Named) -> Tensor:
        config = self.config
        groups, rank = config.o_groups, config.o_lora_rank
        grouped = out.reshape(out.shape[0], groups, -1).transpose(0, 1)
        up = weights["wo_a.weight"].view(groups, rank, -1)
        ranks = torch.bmm(grouped, up.transpose(1, 2)).transpose(0, 1).flatten(1)
        return F.linear(ranks, weights["wo_b.weight"])


def _norm_and_rotate(
    x: Tensor, norm: Tensor | None, rotation: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """Norm [N, H, C] over channels, then rotate the last ones; in float32, cast at the end."""
    return rotate(rms_norm(x, norm, eps, torch.float32), rotation).to(dtype)
