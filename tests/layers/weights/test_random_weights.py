"""Random weights by name."""

import pytest
import torch

from jit_kernels.expert_weights.reference import dense_fp8
from layers.weights.random_weights import fill_random
from layers.weights.weight_target import Fp8Target


def _filled(name: str, *shape: int, seed: int = 0, experts: int = 0) -> torch.Tensor:
    dtype = torch.int64 if experts else torch.float32
    out = torch.full(shape, -7, dtype=dtype)
    fill_random(name, out, seed=seed, experts=experts)
    return out


def test_numbers_depend_on_name_and_seed_only() -> None:
    first = _filled("layers.0.attn.wkv.weight", 64, 64)

    torch.rand(5)

    assert torch.equal(first, _filled("layers.0.attn.wkv.weight", 64, 64))
    assert not torch.equal(first, _filled("layers.1.attn.wkv.weight", 64, 64))
    assert not torch.equal(first, _filled("layers.0.attn.wkv.weight", 64, 64, seed=1))


@pytest.mark.parametrize("width", [16, 400])
def test_a_projection_keeps_the_variance_of_its_input(width: int) -> None:
    weight = _filled("layers.0.ffn.experts.3.w1.weight", 4000, width)

    assert float(weight.var() * width) == pytest.approx(1.0, rel=0.05)


def test_embeddings_have_unit_variance() -> None:
    assert float(_filled("embed.weight", 512, 64).std()) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("name", ["norm.weight", "layers.0.attn_norm.weight", "mtp.0.enorm.weight"])
def test_norms_are_one(name: str) -> None:
    assert (_filled(name, 33) == 1).all()


def test_router_bias_is_zero() -> None:
    assert (_filled("layers.3.ffn.gate.bias", 8) == 0).all()


def test_a_token_is_routed_to_distinct_experts_and_all_experts_are_used() -> None:
    table = _filled("layers.0.ffn.gate.tid2eid", 9000, 3, experts=7)

    assert table.min() == 0
    assert table.max() == 6
    assert all((table[:, a] != table[:, b]).all() for a, b in ((0, 1), (0, 2), (1, 2)))
    assert table.flatten().bincount().float().std() < 0.05 * table.numel() / 7


def test_stream_mixing_starts_near_the_identity() -> None:
    base = _filled("layers.0.hc_attn_base", 24)

    assert (base[:8] == 0).all()
    assert torch.equal(base[8:].view(4, 4), 1.5 * torch.eye(4))
    assert (_filled("hc_head_base", 4) == 0).all()
    assert (_filled("layers.0.hc_ffn_scale", 3) == 1).all()
    assert float(_filled("layers.0.hc_ffn_fn", 24, 400).std()) == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("name", ["layers.0.attn.attn_sink", "layers.2.attn.compressor.ape"])
def test_sinks_and_position_biases_are_small_and_differ(name: str) -> None:
    values = _filled(name, 64)

    assert 0.2 < float(values.std()) < 0.8


def test_a_strided_bfloat16_view_is_filled_in_place() -> None:
    whole = torch.full((8, 64), 9.0, dtype=torch.bfloat16)

    fill_random("layers.0.ffn.experts.0.w2.weight", whole[::2], seed=0)

    assert (whole[1::2] == 9.0).all()
    assert (whole[::2] != 9.0).all()


def test_quantised_storage_is_filled_by_name_seed_and_gain() -> None:
    def filled(name: str, seed: int = 0, gain: float = 1.0) -> torch.Tensor:
        codes = torch.zeros(128, 256, dtype=torch.float8_e4m3fn)
        target = Fp8Target(codes, torch.zeros(1, 2))
        fill_random(name, target, seed=seed, gain=gain)
        return dense_fp8(target.codes, target.scales)

    first = filled("layers.0.attn.wq_a.weight")

    assert torch.equal(first, filled("layers.0.attn.wq_a.weight"))
    assert not torch.equal(first, filled("layers.1.attn.wq_a.weight"))
    assert not torch.equal(first, filled("layers.0.attn.wq_a.weight", seed=1))
    halved = filled("layers.0.attn.wq_a.weight", gain=0.5)
    assert float(halved.var() / first.var()) == pytest.approx(0.25, rel=0.02)
