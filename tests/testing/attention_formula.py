"""One layer of attention as its formula: float64, no pools, no chunks, a loop over tokens."""

import torch
from torch import Tensor

from layers.models.deepseek_v4.config import ModelConfig


def rms(x: Tensor) -> Tensor:
    """Return rows of unit mean square."""
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def rotate(x: Tensor, position: int, config: ModelConfig, *, compressed: bool) -> Tensor:
    """Turn the last channels of `x` [..., C] to `position`, which may be negative."""
    width = config.qk_rope_head_dim
    base = config.compress_rope_theta if compressed else config.rope_theta
    angle = position * base ** (-torch.arange(0, width, 2).double() / width)
    pairs = torch.view_as_complex(x[..., -width:].unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    return torch.cat((x[..., :-width], turned), -1)


def blocks(
    x: Tensor, weights: dict[str, Tensor], prefix: str, config: ModelConfig, ratio: int
) -> Tensor:
    """Return the compressed entries of inputs [T, d]: [T // ratio, width]."""
    kv = x @ weights[f"{prefix}wkv.weight"].T
    ape = weights[f"{prefix}ape"]
    gate = x @ weights[f"{prefix}wgate.weight"].T + ape[torch.arange(x.shape[0]) % ratio]
    norm = weights[f"{prefix}norm.weight"]
    width = norm.shape[0]
    entries: list[Tensor] = []
    for w in range(x.shape[0] // ratio):
        mine = slice(ratio * w, ratio * (w + 1))
        values, logits = kv[mine, -width:], gate[mine, -width:]
        if ratio == 4 and w:
            before = slice(ratio * (w - 1), ratio * w)
            values = torch.cat((kv[before, :width], values))
            logits = torch.cat((gate[before, :width], logits))
        entry = norm * rms((logits.softmax(0) * values).sum(0))
        entries.append(rotate(entry, ratio * w, config, compressed=True))
    return torch.stack(entries) if entries else x.new_zeros((0, width))


def chosen_blocks(
    x: Tensor, weights: dict[str, Tensor], config: ModelConfig, keys: Tensor, position: int
) -> list[int]:
    """Return the blocks of 4 that a token attends, `keys` being the indexer's entries."""
    heads, width = config.index_n_heads, config.index_head_dim
    visible = (position + 1) // 4
    q = (query_base(x, weights) @ weights["indexer.wq_b.weight"].T)[position].view(heads, width)
    q = rotate(q, position, config, compressed=True)
    head_weights = (weights["indexer.weights_proj.weight"] @ x[position]) * (heads * width) ** -0.5
    scores = head_weights @ (q @ keys[:visible].T).clamp(min=0)
    # Where no head's product is above zero several score 0: the first ones are taken.
    best = scores.sort(descending=True, stable=True)[1][: config.index_topk]
    return sorted(best.tolist())


def query_base(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Return the low-rank queries [T, q_lora_rank]."""
    return weights["q_norm.weight"] * rms(x @ weights["wq_a.weight"].T)


def attention(x: Tensor, weights: dict[str, Tensor], config: ModelConfig, ratio: int) -> Tensor:
    """Return the layer's output [T, d] for normed inputs of positions 0..T-1."""
    tokens, heads, width = x.shape[0], config.num_attention_heads, config.head_dim
    compressed = ratio > 0
    kv = weights["kv_norm.weight"] * rms(x @ weights["wkv.weight"].T)
    kv = torch.stack([rotate(kv[t], t, config, compressed=compressed) for t in range(tokens)])
    q = rms((query_base(x, weights) @ weights["wq_b.weight"].T).view(tokens, heads, width))
    entries = blocks(x, weights, "compressor.", config, ratio) if ratio else kv[:0]
    keys = blocks(x, weights, "indexer.compressor.", config, 4) if ratio == 4 else kv[:0]
    sink = weights["attn_sink"].unsqueeze(1)
    outputs: list[Tensor] = []
    for t in range(tokens):
        seen = [kv[max(0, t - config.sliding_window + 1) : t + 1]]
        if ratio == 4:
            seen.append(entries[chosen_blocks(x, weights, config, keys, t)])
        elif ratio:
            seen.append(entries[: (t + 1) // ratio])
        mine = torch.cat(seen)
        logits = rotate(q[t], t, config, compressed=compressed) @ mine.T * width**-0.5
        p = torch.cat((logits, sink), 1).softmax(1)[:, :-1]
        outputs.append(rotate(p @ mine, -t, config, compressed=compressed))
    grouped = torch.stack(outputs).view(tokens, config.o_groups, -1)
    wo_a = weights["wo_a.weight"].view(config.o_groups, config.o_lora_rank, -1)
    return torch.einsum("tgk,gnk->tgn", grouped, wo_a).flatten(1) @ weights["wo_b.weight"].T
