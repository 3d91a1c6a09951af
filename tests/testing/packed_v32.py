"""DeepSeek V3.2 of transformers over packed rows: an emulation of the bytes that are cached.

transformers keeps plain numbers. Here it attends what packed rows say: latents in e4m3 by blocks of
128 with a power-of-two scale, turned channels in bfloat16, indexer keys and queries in e4m3 behind
a Hadamard transform. A number on the border between two codes may fall to either, and one such
number changes what later tokens choose. Keys and records are therefore taken from the bytes under
test, each after a check that it is what the emulation makes, or the code next to it. Tokens whose
choice hangs on such a border, or on scores that tie, are undecided: nothing is said of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

__all__ = ["StoredLayer", "emulated_logits", "stored_layers"]

_MODULE = "transformers.models.deepseek_v32.modeling_deepseek_v32"
_BLOCK, _GROUP = 128, 64
# Neighbours among numbers of a format differ by at most this share of either.
_E4M3_STEP, _BF16_STEP = 2.0**-3, 2.0**-7
# The step of the smallest codes, as a share of the block's greatest number.
_LEAST_STEP = 2.0**-16
# Most numbers that may fall to another code than the emulation's.
_MOST_OTHERS = 0.01
# How far sums of another order may lie: of queries as a share, of scores.
_NEAR, _TIE = 1e-5, 1e-4

Norm = Callable[[Tensor], Tensor]


class StoredLayer(NamedTuple):
    """What a layer caches of T tokens, read from its bytes.

    latents  [T, latent] float32
    turned   [T, R] float32
    keys     [T, C] float32, behind the Hadamard transform
    """

    latents: Tensor
    turned: Tensor
    keys: Tensor


def stored_layers(pools: Any, pages: Sequence[int], tokens: int) -> list[StoredLayer]:
    """Return what `SparsePools` in fp8 hold in the pages of a row of so many tokens."""
    page = pools.page
    latent, at = page.channels - page.turned, list(pages)
    scales = latent + 4 * (latent // _BLOCK)
    layers: list[StoredLayer] = []
    for rows, groups in zip(pools.records[:, at], pools.keys[:, at], strict=True):
        raw = rows.flatten(0, 1)[:tokens]
        blocks = _numbers(raw[:, :latent], torch.float8_e4m3fn).unflatten(1, (-1, _BLOCK))
        latents = blocks * _numbers(raw[:, latent:scales], torch.float32).unsqueeze(2)
        raw_keys, codes = groups.flatten(0, 1), _GROUP * page.key_channels
        keys = _numbers(raw_keys[:, :codes], torch.float8_e4m3fn).unflatten(1, (_GROUP, -1))
        keys *= _numbers(raw_keys[:, codes : codes + 4 * _GROUP], torch.float32).unsqueeze(2)
        layers.append(
            StoredLayer(
                latents.flatten(1),
                _numbers(raw[:, scales:], torch.bfloat16),
                keys.flatten(0, 1)[:tokens],
            )
        )
    return layers


def _numbers(raw: Tensor, dtype: torch.dtype) -> Tensor:
    return raw.contiguous().view(dtype).to(torch.float32)


@torch.inference_mode()
def emulated_logits(
    model: Any, prompt: list[int], stored: Sequence[StoredLayer]
) -> tuple[Tensor, Tensor]:
    """Return what a V3.2 of transformers whose cache is packed makes of a prompt.

    Logits [T, vocab], and which tokens are decided, [T] bool. Fails where `stored` is not what the
    emulation makes of decided tokens.
    """
    layer_of = {id(layer.self_attn.indexer): i for i, layer in enumerate(model.model.layers)}
    turn = pytest.importorskip(_MODULE).apply_rotary_pos_emb_interleave
    layer, decided = -1, torch.ones(len(prompt), dtype=torch.bool)

    def rounding(norm: Norm, number: int) -> Norm:
        def normed(x: Tensor) -> Tensor:
            nonlocal layer
            layer = number
            own = _rounded(norm(x)[0], _BLOCK)
            return _held(own, stored[number].latents, decided).unsqueeze(0)

        return normed

    def turned(q: Tensor, k: Tensor, *rotation: Tensor) -> tuple[Tensor, Tensor]:
        q, k = turn(q, k, *rotation)
        # transformers has the even channels of all pairs first.
        pairs = torch.cat((stored[layer].turned[:, 0::2], stored[layer].turned[:, 1::2]), 1)
        own = k[0, 0].bfloat16().float()
        return q, _held(own, pairs, decided, step=_BF16_STEP).expand_as(k)

    def choose(
        indexer: Any, x: Tensor, latent: Tensor, rotation: Any, *_: Any, **__: Any
    ) -> Tensor:
        keys = stored[layer_of[id(indexer)]].keys
        chosen, sure = _chosen(indexer, x, latent, rotation, keys, decided)
        decided.logical_and_(sure)
        return chosen

    with pytest.MonkeyPatch.context() as patch:
        for number, part in enumerate(model.model.layers):
            norm = part.self_attn.kv_a_layernorm
            patch.setattr(norm, "forward", rounding(norm.forward, number))
        patch.setattr(f"{_MODULE}.apply_rotary_pos_emb_interleave", turned)
        patch.setattr(f"{_MODULE}.DeepseekV32Indexer.forward", choose)
        logits = model(torch.tensor([prompt]), use_cache=False).logits[0]
    return logits, decided


def _chosen(
    indexer: Any, x: Tensor, latent: Tensor, rotation: Any, keys: Tensor, decided: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the positions that an indexer chooses by packed keys, [1, T, K] int32.

    And for which tokens no number on a border decides, [T] bool.
    """
    width, part = indexer.head_dim, indexer.qk_rope_head_dim
    q = indexer.wq_b(latent).unflatten(2, (indexer.n_heads, width))
    k = indexer.k_norm(indexer.wk(x)).unsqueeze(2)
    halves: Any = pytest.importorskip(_MODULE).apply_rotary_pos_emb
    turned = halves(q[..., :part], k[..., :part], *rotation, unsqueeze_dim=2)
    q, k = (
        (torch.cat((t, whole[..., part:]), -1) @ _hadamard(width))[0]
        for t, whole in zip(turned, (q, k), strict=True)
    )
    keys = _held(_rounded(k[:, 0], width), keys, decided)
    weights = indexer.weights_proj(x)[0] * (indexer.n_heads * width) ** -0.5

    def scored(by: float) -> Tensor:
        wanted = torch.einsum("qhc,kc->qhk", _rounded(q * by, width), keys).relu()
        scores = torch.einsum("qh,qhk->qk", weights, wanted)
        return scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)

    most = min(indexer.index_topk, len(keys))
    scores = scored(1.0)
    best = scores.topk(min(most + 1, len(keys)))
    least = best.values[:, most - 1, None] - _TIE
    # Those that are chosen whichever way numbers on a border fall; a token has at least itself.
    alike = [scored(by) > least for by in (1.0 - _NEAR, 1.0 + _NEAR)]
    sure = (alike[0] == alike[1]).all(1) & (alike[0].sum(1) <= most)
    return best.indices[:, :most].int().unsqueeze(0), sure


def _hadamard(width: int) -> Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < width:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix * width**-0.5


def _rounded(x: Tensor, block: int) -> Tensor:
    """Return numbers rounded to e4m3, with a power-of-two scale for each `block` of them."""
    parts = x.unflatten(-1, (-1, block))
    scale = torch.exp2((parts.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448).log2().ceil())
    return ((parts / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def _held(own: Tensor, stored: Tensor, decided: Tensor, *, step: float = _E4M3_STEP) -> Tensor:
    """Return what is stored, [T, n].

    Fails unless that of decided tokens is `own` but for few numbers of a neighbouring code.
    """
    allowed = step * torch.maximum(own.abs(), stored.abs())
    allowed += _LEAST_STEP * own.abs().amax(-1, keepdim=True)
    far = ((own - stored).abs() > allowed)[decided]
    assert not bool(far.any()), "a stored number is another one"
    others = float((own != stored)[decided].float().mean())
    assert others <= _MOST_OTHERS, f"{others:.1%} of the stored numbers have another code"
    return stored
