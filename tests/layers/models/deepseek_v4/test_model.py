"""The model and its networks: weights, pools, and what one step returns and leaves alone."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from layers.models.contract import Settings
from layers.models.deepseek_v4.config import ConfigFault, ModelConfig
from layers.models.deepseek_v4.model import QuantisedV4, ReferenceV4, V4Model, read
from layers.steps.forward_batch import FedTokens
from layers.weights.loading import fill_dummy
from mem_cache.spec import PoolSizes
from tests.testing.direct import CPU, Chunk, Direct
from tests.testing.fused_model import FusedModel
from tests.testing.stand_in.folder import stand_in_config
from tests.testing.tiny_model import CONFIG, PACKED, build, cold_batch, plain_weights, prompt

CUDA = torch.device("cuda")
# Every kind of layer, in sizes that fp8 weights have.
SMALL = dataclasses.replace(
    PACKED,
    hidden_size=128,
    q_lora_rank=128,
    o_lora_rank=128,
    n_routed_experts=8,
    moe_intermediate_size=128,
)
Network = ReferenceV4 | QuantisedV4


def reference(device: torch.device, config: ModelConfig = SMALL) -> ReferenceV4:
    """Return a reference network, without weights yet."""
    return ReferenceV4(config, device, torch.float32, record_format="fp8")


def quantised(device: torch.device, config: ModelConfig = SMALL) -> QuantisedV4:
    """Return a quantised network, without weights yet."""
    return QuantisedV4(config, device, experts="fp8")


BOTH = pytest.mark.parametrize("make", [reference, quantised])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_have_their_names_dense_shapes_and_dtypes(dtype: torch.dtype) -> None:
    named = plain_weights(ReferenceV4(CONFIG, CPU, dtype).named_weights())

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
        "layers.1.ffn.gate.weight": ((5, width), torch.float32),
        "layers.1.ffn.gate.bias": ((5,), torch.float32),
        "layers.1.ffn.experts.4.w2.weight": ((width, CONFIG.moe_intermediate_size), dtype),
        "layers.1.attn.compressor.wkv.weight": ((96, width), torch.float32),
        "layers.1.attn.compressor.ape": ((4, 96), torch.float32),
        "layers.1.attn.indexer.compressor.wgate.weight": ((64, width), torch.float32),
        "layers.1.attn.indexer.compressor.ape": ((4, 64), torch.float32),
        "layers.1.attn.indexer.wq_b.weight": ((5 * 32, CONFIG.q_lora_rank), dtype),
        "layers.1.attn.indexer.weights_proj.weight": ((5, width), torch.float32),
        "layers.2.attn.compressor.ape": ((128, 48), torch.float32),
        "layers.2.attn.compressor.norm.weight": ((48,), torch.float32),
    }
    for name, (shape, kind) in expected.items():
        assert (tuple(named[name].shape), named[name].dtype) == (shape, kind), name
    assert not [name for name in named if "compressor" in name and name.startswith("layers.0.")]
    assert not [name for name in named if name.startswith("mtp.")]


@pytest.mark.parametrize("form", ["fp4", "fp8", "both"])
def test_both_networks_have_the_same_weights(form: str) -> None:
    made = QuantisedV4(SMALL, CPU, experts=form)  # type: ignore[arg-type]

    shapes, other = (
        {name: tuple(target.shape) for name, target in network.named_weights()}
        for network in (made, reference(CPU))
    )

    assert shapes == other


def test_every_weight_is_written_through_its_view() -> None:
    views = plain_weights(ReferenceV4(CONFIG, CPU, torch.float32).named_weights())
    for i, view in enumerate(views.values()):
        view.fill_(i)

    for i, (name, view) in enumerate(views.items()):
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


@BOTH
def test_tokens_of_the_device_take_the_places_of_the_batch(
    make: Callable[[torch.device], Network],
) -> None:
    network = make(CPU)
    fill_dummy(network, 7)
    batch = cold_batch(9)
    pools = network.pools(PoolSizes(full_pages=2, swa_pages=4, states=1))
    want, at = network.prefill(batch, pools).logits, torch.tensor([2, 8])
    ids = batch.input_ids[at].clone()
    batch.input_ids[at] = 0
    assert not torch.equal(network.prefill(batch, pools).logits, want)

    got = network.prefill(batch, pools, fed=FedTokens(at, ids)).logits

    assert torch.equal(got, want)


@BOTH
def test_halfway_is_called_once_in_a_step(make: Callable[[torch.device], Network]) -> None:
    network, calls = make(CPU), list[str]()
    fill_dummy(network, 7)
    pools = network.pools(PoolSizes(full_pages=2, swa_pages=4, states=1))

    network.prefill(cold_batch(3), pools, halfway=lambda: calls.append("half"))

    assert calls == ["half"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_with_a_broken_token_is_not_finite_and_the_others_are(dtype: torch.dtype) -> None:
    model = ReferenceV4(CONFIG, CPU, dtype)
    fill_dummy(model, 7)
    plain_weights(model.named_weights())["embed.weight"][96] = torch.nan
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


@pytest.mark.parametrize("ratios", [(0,), (4,), (128,)])
def test_a_quantised_model_may_lack_a_kind_of_layer(
    device: torch.device, ratios: tuple[int, ...]
) -> None:
    config = dataclasses.replace(SMALL, num_hidden_layers=1, compress_ratios=ratios)
    made = QuantisedV4(config, device, experts="fp8", deterministic=True)
    fill_dummy(made, 1)
    direct = Direct(FusedModel(made), "fp8", device=device)
    direct.poison()
    tokens = prompt(140, seed=2)

    whole = direct.prefill(direct.row(tokens), logits=range(140))
    row = direct.row(tokens)
    parts = [direct.prefill(row, stop=132, chunk=33, logits=range(140))]
    parts += [direct.prefill(row, stop=row.done + 1, logits=range(140)) for _ in range(8)]

    assert whole.isfinite().all()
    assert torch.equal(whole, torch.cat(parts))


def settings(**changes: object) -> Settings:
    """Return settings of which some are not left open."""
    return dataclasses.replace(Settings(), **changes)  # type: ignore[arg-type]


def test_a_model_says_what_its_files_say() -> None:
    raw = stand_in_config()

    facts = read(raw, {"eos_token_id": [2, 1]}, {"hidden_size": 384}).facts

    assert (facts.model_type, facts.architectures) == ("deepseek_v4", ("DeepseekV4ForCausalLM",))
    assert (facts.num_layers, facts.hidden_size) == (raw["num_hidden_layers"], 384)
    assert facts.vocab_size == raw["vocab_size"]
    assert facts.context_tokens == raw["max_position_embeddings"]
    assert facts.eos_token_ids == (1, 2)


@pytest.mark.parametrize(
    ("changes", "dtype", "record_format"),
    [
        ({}, "float32", "fp32"),
        ({"dtype": "bfloat16"}, "bfloat16", "bf16"),
        ({"dtype": "float32", "kv_cache_dtype": "bf16"}, "float32", "bf16"),
    ],
)
def test_on_the_cpu_settings_say_the_numbers(
    changes: dict[str, str], dtype: str, record_format: str
) -> None:
    network = V4Model(CONFIG).build(CPU, settings(**changes, draft_tokens=3))

    assert isinstance(network, ReferenceV4)
    assert network.facts == {"dtype": dtype, "record_format": record_format}
    assert network.cache.record_format == record_format
    assert network.cache.tree.draft_tokens == 3


@pytest.mark.parametrize(
    ("changes", "form"),
    [({}, "both"), ({"experts": "fp8"}, "fp8"), ({"weight_bytes": 0}, "fp4")],
)
def test_on_a_gpu_settings_say_the_form_of_experts(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], form: str
) -> None:
    model = V4Model(dataclasses.replace(SMALL, expert_dtype="fp4"))
    # Nothing runs: the network is made where its tensors need no device.
    real = QuantisedV4.__init__

    def elsewhere(self: QuantisedV4, config: ModelConfig, device: torch.device, **more: object):
        assert device == CUDA
        real(self, config, torch.device("meta"), **more)  # type: ignore[arg-type]

    monkeypatch.setattr(QuantisedV4, "__init__", elsewhere)

    network = model.build(CUDA, settings(**changes, deterministic=False, draft_tokens=2))

    assert isinstance(network, QuantisedV4)
    assert network.facts == {"dtype": "bfloat16", "record_format": "fp8", "experts": form}
    advice = model.smaller(settings(**changes))
    assert (advice is None) == (form == "fp4")
    assert network.cache.tree.draft_tokens == 2


def test_a_deterministic_network_keeps_one_form_of_experts() -> None:
    made = QuantisedV4(SMALL, CPU, experts="both", deterministic=True)

    assert made.facts["experts"] == "fp4"


def test_what_the_kernels_do_not_take_is_refused() -> None:
    with pytest.raises(ConfigFault, match="head_dim is 48"):
        QuantisedV4(CONFIG, CPU, experts="fp8")
    with pytest.raises(ConfigFault, match="head_dim is 48"):
        V4Model(CONFIG).check_cuda()
    V4Model(SMALL).check_cuda()
    with pytest.raises(ConfigFault, match="kv_cache_dtype bf16 is for the CPU: on a GPU"):
        V4Model(SMALL).build(torch.device("cuda"), Settings(kv_cache_dtype="bf16"))


@BOTH
def test_pools_are_those_that_the_cache_is_told_of(
    make: Callable[[torch.device], Network],
) -> None:
    network, some, more = make(CPU), PoolSizes(32, 3, 4), PoolSizes(64, 5, 9)

    pools = network.pools(some)

    cache = network.cache
    assert (pools.sizes, pools.spec.tree) == (some, cache.tree)
    added = 32 * cache.full_page_bytes + 2 * cache.swa_page_bytes + 5 * cache.state_bytes
    assert network.pools(more).bytes - pools.bytes == added
