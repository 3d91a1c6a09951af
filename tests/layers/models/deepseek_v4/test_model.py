"""The whole network: its weights, and what one step returns and leaves alone."""

import dataclasses

import pytest
import torch

from layers.models.deepseek_v4.model import ReferenceV4
from layers.weights.loading import fill_dummy
from tests.testing.direct import CPU, Chunk
from tests.testing.tiny_model import CONFIG, build, prompt


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_have_their_names_dense_shapes_and_dtypes(dtype: torch.dtype) -> None:
    named = dict(ReferenceV4(CONFIG, CPU, dtype).named_weights())

    width, heads = CONFIG.hidden_size, CONFIG.num_attention_heads
    expected = {
        "embed.weight": ((CONFIG.vocab_size, width), dtype),
        "head.weight": ((CONFIG.vocab_size, width), dtype),
        "norm.weight": ((width,), torch.float32),
        "hc_head_fn": ((4, 4 * width), torch.float32),
        "layers.0.hc_attn_fn": ((24, 4 * width), torch.float32),
        "layers.0.attn.attn_sink": ((heads,), torch.float32),
        "layers.0.attn.wq_b.weight": ((heads * 48, CONFIG.q_lora_rank), dtype),
        "layers.0.attn.wo_a.weight": ((2 * CONFIG.o_lora_rank, heads // 2 * 48), dtype),
        "layers.0.ffn.gate.tid2eid": ((CONFIG.vocab_size, 2), torch.int64),
        "layers.1.ffn.gate.bias": ((5,), torch.float32),
        "layers.1.ffn.experts.4.w2.weight": ((width, CONFIG.moe_intermediate_size), dtype),
        "layers.1.attn.compressor.wkv.weight": ((96, width), torch.float32),
        "layers.1.attn.compressor.ape": ((4, 96), torch.float32),
        "layers.1.attn.indexer.compressor.wgate.weight": ((64, width), torch.float32),
        "layers.1.attn.indexer.compressor.ape": ((4, 64), torch.float32),
        "layers.1.attn.indexer.wq_b.weight": ((5 * 32, CONFIG.q_lora_rank), dtype),
        "layers.1.attn.indexer.weights_proj.weight": ((5, width), dtype),
        "layers.2.attn.compressor.ape": ((128, 48), torch.float32),
        "layers.2.attn.compressor.norm.weight": ((48,), torch.float32),
    }
    for name, (shape, kind) in expected.items():
        assert (tuple(named[name].shape), named[name].dtype) == (shape, kind), name
    assert not [name for name in named if "compressor" in name and name.startswith("layers.0.")]
    assert not [name for name in named if name.startswith("mtp.")]


def test_every_weight_is_written_through_its_view() -> None:
    model = ReferenceV4(CONFIG, CPU, torch.float32)
    for i, (_, view) in enumerate(model.named_weights()):
        view.fill_(i)

    for i, (name, view) in enumerate(model.named_weights()):
        assert bool((view == i).all()), f"{name} shares memory with another weight"


def test_logits_come_in_the_order_they_were_asked_for() -> None:
    tokens, direct = prompt(20, seed=1), build()
    ordered, _ = direct.step([Chunk(direct.row(tokens), 20, logits=range(20))])

    picked, _ = direct.step([Chunk(direct.row(tokens), 20, logits=[7, 19, 7, 0])])

    assert picked.dtype == torch.float32
    assert torch.equal(picked, ordered[[7, 19, 7, 0]])


def test_a_step_without_wanted_logits_returns_none_of_them() -> None:
    direct = build()

    logits, _ = direct.step([Chunk(direct.row([1, 2, 3]), 3)])

    assert logits.shape == (0, CONFIG.vocab_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_with_a_broken_token_is_not_finite_and_the_others_are(dtype: torch.dtype) -> None:
    model = ReferenceV4(CONFIG, CPU, dtype)
    fill_dummy(model, 7)
    dict(model.named_weights())["embed.weight"][96] = torch.nan
    direct = build(model=model)
    direct.may_be_broken = True
    tokens = [token % 96 for token in prompt(30, seed=4)]
    bad = direct.row([*tokens[:7], 96, *tokens[7:]])
    rows = [direct.row(tokens), bad, direct.row(tokens)]

    logits, _ = direct.step([Chunk(rows[0], 30, logits=[29]), Chunk(bad, 7), Chunk(rows[2], 9)])
    assert direct.finite == [True, True, True]
    others, _ = direct.step([Chunk(rows[2], 30, logits=[29]), Chunk(bad, 20)])
    assert direct.finite == [True, False]

    assert torch.equal(others, logits)


@pytest.mark.parametrize("ratios", [(0, 0), (4, 4), (128,), (128, 0)])
def test_a_model_may_lack_a_kind_of_layer(ratios: tuple[int, ...]) -> None:
    config = dataclasses.replace(CONFIG, num_hidden_layers=len(ratios), compress_ratios=ratios)
    model = ReferenceV4(config, CPU, torch.float32)
    fill_dummy(model, 1)
    direct = build(model=model)
    tokens = prompt(140, seed=2)

    whole = direct.prefill(direct.row(tokens), logits=range(140))
    parts = direct.prefill(direct.row(tokens), chunk=33, logits=range(140))

    assert whole.isfinite().all()
    assert torch.equal(whole, parts)
