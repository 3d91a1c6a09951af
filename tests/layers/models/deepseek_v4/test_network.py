"""The wiring, part by part: against formulas, over notes of what a step is given, in both kinds."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from layers.kinds import Kinds, PlainKinds, QuantisedKinds
from layers.linear.contract import Named
from layers.models.deepseek_v4.config import ModelConfig
from layers.models.deepseek_v4.network import Attention, DeepseekV4, Experts, Fold, Pooling
from layers.models.deepseek_v4.pool_spec import RecordFormat
from layers.parallel.ranks import OneRank
from layers.steps.chunks.step import PrefillStep
from layers.steps.contract import FoldWeights, PoolingWeights
from layers.steps.decode_step import DecodeStep
from layers.weights.loading import fill_dummy
from layers.weights.quant import dequantise_fp8
from layers.weights.weight_target import Fp8Target
from tests.testing import attention_formula
from tests.testing.attention_pair import CONFIG as PAIR
from tests.testing.attention_pair import AttentionLayers, LayersOver, assert_alike
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.direct import CPU, Chunk, Direct
from tests.testing.exact_products import round_no_activations
from tests.testing.tiny_model import (
    CONFIG,
    cold_batch,
    one_layer,
    plain_weights,
    prompt,
    randomise,
)

pytestmark = pytest.mark.usefixtures("poisoned_empty")

SIZES = dataclasses.replace(PAIR, o_lora_rank=128, moe_intermediate_size=128)
WIDTH, INDEX = SIZES.head_dim, SIZES.index_head_dim
# Rows rounded to e4m3 are off by 2.6 % each; so are their sums over many channels, and attention
# has four such products in a row.
ROUNDED, ROUNDED_FOUR_TIMES = (
    Bounds(cosine=0.998, rms=0.06, atol=torch.inf),
    Bounds(cosine=0.99, rms=0.15, atol=torch.inf),
)
PLAIN = PlainKinds(CPU, torch.float32)

MakeKinds = Callable[[torch.device], Kinds]
KINDS: dict[str, MakeKinds] = {
    "plain": partial(PlainKinds, dtype=torch.bfloat16),
    "quantised": partial(QuantisedKinds, experts="fp8"),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def kinds(request: pytest.FixtureRequest, device: torch.device) -> Kinds:
    """Return kinds of layers whose activations are bfloat16."""
    return request.param(device)


@dataclasses.dataclass(frozen=True, slots=True)
class Alone:
    """A part of a network by itself, which can be filled."""

    named: Callable[[str], Named]

    def named_weights(self) -> Named:
        """Yield the weights under the names of layer 1."""
        yield from self.named("layers.1.")


def fill(part: Attention | Experts | Fold | Pooling) -> None:
    """Give all weights numbers."""
    fill_dummy(Alone(part.named_weights), 3)


def shapes(named: Named) -> dict[str, tuple[int, ...]]:
    """Return the shapes of weights by name."""
    return {name: tuple(target.shape) for name, target in named}


def hand_over(named: Named, weights: dict[str, Tensor]) -> None:
    """Put plain weights into others, quantised ones too, and what became of them back."""
    targets = dict(named)
    assert targets.keys() == weights.keys()
    for name, target in targets.items():
        weight = weights[name]
        if isinstance(target, Tensor):
            target.copy_(weight)
            weight.copy_(target)
        else:
            assert isinstance(target, Fp8Target)
            target.put_plain(weight)
            numbers = torch.empty(weight.shape)
            dequantise_fp8(target.codes, target.scales, numbers)
            weight.copy_(numbers)


class NotedStep(DecodeStep):
    """Notes what a step is given, by the name of the call, and does nothing with it."""

    def __init__(self) -> None:
        self.given: dict[str, tuple[Any, ...]] = {}

    def pool(self, layer: int, rows: Tensor, weights: PoolingWeights) -> None:
        self.given["pool"] = layer, rows, weights

    def fold(self, layer: int, rows: Tensor, weights: FoldWeights) -> None:
        self.given["fold"] = layer, rows, weights


def test_a_pooling_layer_writes_state_rows_and_returns_the_rest(kinds: Kinds) -> None:
    made, step = Pooling(SIZES, kinds), NotedStep()
    fill(made)
    x = torch.randn(3, 128).bfloat16()
    states, heads = 4 * WIDTH + 4 * INDEX, SIZES.index_n_heads

    head_weights = made.write(x, step, 7)

    layer, written, weights = step.given["pool"]
    assert layer == 7
    named = plain_weights(made.named_weights(""))
    rows = [
        named[f"{part}.weight"].float() @ x.float().T
        for part in (
            *(f"{branch}.{half}" for branch in ("compressor", "indexer.compressor")
              for half in ("wkv", "wgate")),
            "indexer.weights_proj",
        )
    ]  # fmt: skip
    want = torch.cat(rows).T
    assert (written.shape, head_weights.shape) == ((3, states), (3, heads))
    assert_close(torch.cat((written, head_weights), 1), want, Bounds(atol=1e-3, rtol=1e-4))
    assert weights.norm is named["compressor.norm.weight"]
    assert weights.index_norm is named["indexer.compressor.norm.weight"]
    kv, gate = weights.ape[:, : 2 * WIDTH], weights.ape[:, 2 * WIDTH : 4 * WIDTH]
    assert not kv.any()
    assert_same_bits(gate.contiguous(), named["compressor.ape"].contiguous())
    assert not weights.ape[:, 4 * WIDTH : 4 * WIDTH + 2 * INDEX].any()


def test_queries_of_the_indexer_stand_by_heads(kinds: Kinds) -> None:
    pooling = Pooling(SIZES, kinds)
    latent = kinds.projection(128, {"any": 128}).rows(torch.randn(3, 128).bfloat16())

    assert pooling.queries(latent).shape == (3, SIZES.index_n_heads, INDEX)


def test_a_folding_layer_writes_all_its_rows(kinds: Kinds) -> None:
    made, step = Fold(SIZES, kinds), NotedStep()
    fill(made)
    x = torch.randn(3, 128).bfloat16()

    made.write(x, step, 2)

    assert step.given.keys() == {"fold"}
    layer, written, weights = step.given["fold"]
    named = plain_weights(made.named_weights(""))
    halves = [named[f"compressor.{half}.weight"].float() @ x.float().T for half in ("wkv", "wgate")]
    assert layer == 2
    assert_close(written, torch.cat(halves).T, Bounds(atol=1e-3, rtol=1e-4))
    assert not weights.ape[:, :WIDTH].any()
    assert_same_bits(weights.ape[:, WIDTH:].contiguous(), named["compressor.ape"].contiguous())
    assert weights.norm is named["compressor.norm.weight"]


def test_weights_of_compressors_have_the_names_of_files(kinds: Kinds) -> None:
    pooling, fold = (made(SIZES, kinds).named_weights("") for made in (Pooling, Fold))

    own = {"compressor.wkv.weight", "compressor.wgate.weight", "compressor.norm.weight"}
    found = shapes(fold)
    assert found.keys() == own | {"compressor.ape"}
    assert found["compressor.ape"] == (128, WIDTH)
    assert found["compressor.wkv.weight"] == (WIDTH, 128)
    index = {f"indexer.{name}" for name in own}
    more = {"indexer.wq_b.weight", "indexer.weights_proj.weight", "indexer.compressor.ape"}
    assert shapes(pooling).keys() == own | index | more | {"compressor.ape"}


def test_the_ratio_says_what_a_layer_compresses_with(kinds: Kinds) -> None:
    plain, pooling, fold = (
        {name for name in shapes(Attention(SIZES, layer, kinds, OneRank()).named_weights(""))
         if "compressor" in name or "indexer" in name}
        for layer in range(3)
    )  # fmt: skip

    assert not plain
    assert pooling == shapes(Pooling(SIZES, kinds).named_weights("")).keys()
    assert fold == shapes(Fold(SIZES, kinds).named_weights("")).keys()


def test_weights_of_attention_have_the_names_of_files(kinds: Kinds) -> None:
    layer = Attention(SIZES, 1, kinds, OneRank())

    found = shapes(layer.named_weights("attn."))

    assert found["attn.wq_a.weight"] == (128, 128)
    assert found["attn.wkv.weight"] == (WIDTH, 128)
    assert found["attn.indexer.wq_b.weight"] == (SIZES.index_n_heads * INDEX, 128)
    assert found["attn.compressor.ape"] == (4, 2 * WIDTH)
    assert found["attn.indexer.compressor.ape"] == (4, 2 * INDEX)
    assert found["attn.attn_sink"] == (SIZES.num_attention_heads,)


def cold_attention(
    ratio: int, length: int, record_format: RecordFormat = "fp32"
) -> tuple[Tensor, Tensor]:
    """Return what one layer gives to a cold prompt, and what the formula gives."""
    config, _, step = one_layer(ratio, cold_batch(length), record_format)
    attention = Attention(config, 0, PLAIN, OneRank())
    weights = randomise(attention.named_weights(""))
    x = torch.randn(length, config.hidden_size)

    q = attention.project(x, step)
    got = attention.finish(step.attend(0, q, attention.sink), step)

    doubles = {name: weight.double() for name, weight in weights.items()}
    return got, attention_formula.attention(x.double(), doubles, config, ratio).float()


@pytest.mark.parametrize(
    ("ratio", "length"), [(0, 1), (0, 150), (4, 3), (4, 150), (128, 127), (128, 300)]
)
def test_a_cold_prompt_gives_the_formula(ratio: int, length: int) -> None:
    assert_close(*cold_attention(ratio, length), Bounds(atol=1e-4))


@pytest.mark.parametrize(("record_format", "bound"), [("bf16", 0.02), ("fp8", 0.08)])
def test_low_precision_records_stay_near_the_formula(
    record_format: RecordFormat, bound: float
) -> None:
    # Below 4 * index_topk tokens every block is attended: no choice can flip.
    got, want = cold_attention(4, 90, record_format)

    assert_close(got, want, Bounds(atol=10.0, rms=bound))


def pair(device: torch.device) -> tuple[Direct, Direct]:
    """Return (plain, quantised) attention with the same numbers as weights, pools poisoned."""
    plain = AttentionLayers(SIZES, device)
    quantised = AttentionLayers(SIZES, device, QuantisedKinds(device, experts="fp8"))
    quantised.embedding = plain.embedding
    for layer, other in zip(plain.layers, quantised.layers, strict=True):
        hand_over(other.named_weights(""), plain_weights(layer.named_weights("")))
    both = tuple(
        Direct(LayersOver(layers, PrefillStep), "fp8", device=device)
        for layers in (plain, quantised)
    )
    for direct in both:
        direct.poison()
    return both[0], both[1]


def script(direct: Direct) -> Tensor:
    """Prefill two rows in chunks, then take them further by a token."""
    rows = [direct.row(prompt(length, seed=length)) for length in (270, 40)]
    parts = [direct.step([Chunk(rows[0], 200), Chunk(rows[1], 7)])[0]]
    for ahead in (69, 1):
        ends = (rows[0].done + ahead, min(39, rows[1].done + ahead) if ahead > 1 else 40)
        parts.append(direct.step([Chunk(*each) for each in zip(rows, ends, strict=True)])[0])
    return torch.cat(parts)


def test_quantised_attention_gives_what_plain_attention_gives(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_no_activations(monkeypatch)
    plain, quantised = pair(device)

    got, want = script(quantised), script(plain)

    # Of twenty seeds the worst had 3 % of tokens choose otherwise: queries are rounded here.
    assert_alike(got, want, even=0.05)
    # Keys are rounded to bfloat16 before their norm: some numbers move to the next code.
    mine = quantised.pools.tensors()
    for name, tensor in plain.pools.tensors().items():
        if tensor.dtype == torch.uint8:
            differing = (mine[name] != tensor).float().mean(-1)
            assert float(differing.max()) < 0.1, name


def test_rounding_activations_costs_what_their_bits_cost(device: torch.device) -> None:
    plain, quantised = pair(device)

    got, want = script(quantised), script(plain)

    for layer in range(len(SIZES.compress_ratios)):
        assert_close(got[:, layer], want[:, layer], ROUNDED_FOUR_TIMES, what=f"layer {layer}")


def test_deterministic_attention_gives_a_token_the_same_bits_in_any_chunk(
    device: torch.device,
) -> None:
    kinds = QuantisedKinds(device, experts="fp8", deterministic=True)
    layers = AttentionLayers(SIZES, device, kinds)
    for layer in layers.layers:
        fill(layer)
    make = partial(PrefillStep, deterministic=True)
    tokens, found = prompt(150, seed=2), list[Tensor]()

    for chunk in (150, 31):
        direct = Direct(LayersOver(layers, make), "fp8", device=device)
        direct.poison()
        found.append(direct.prefill(direct.row(tokens), chunk=chunk, logits=()))

    assert_same_bits(found[1], found[0])


def expert_formula(x: Tensor, ids: Tensor, named: dict[str, Tensor], config: ModelConfig) -> Tensor:
    """Return what a mixture gives to [T, d], in float64, a token at a time."""
    doubles = {name: w.double() if w.is_floating_point() else w for name, w in named.items()}
    limit, chosen = config.swiglu_limit, config.num_experts_per_tok

    def expert(name: str, row: Tensor) -> Tensor:
        w1, w2, w3 = (doubles[f"{name}.w{i}.weight"] for i in (1, 2, 3))
        return w2 @ (F.silu((w1 @ row).clamp(max=limit)) * (w3 @ row).clamp(-limit, limit))

    outputs: list[Tensor] = []
    for row, token in zip(x.double(), ids, strict=True):
        scores = F.softplus(doubles["gate.weight"] @ row).sqrt()
        if "gate.tid2eid" in doubles:
            experts = doubles["gate.tid2eid"][token].tolist()
        else:
            experts = (scores + doubles["gate.bias"]).topk(chosen)[1].tolist()
        shares = config.routed_scaling_factor * scores / scores[experts].sum()
        routed = [shares[e] * expert(f"experts.{e}", row) for e in experts]
        outputs.append(torch.stack([*routed, expert("shared_experts", row)]).sum(0))
    return torch.stack(outputs)


@pytest.mark.parametrize("layer", [0, 2])
def test_the_sum_runs_over_the_chosen_experts_and_the_shared_one(layer: int) -> None:
    experts = Experts(CONFIG, layer, PLAIN, OneRank())
    named = plain_weights(experts.named_weights(""))
    for name, weight in named.items():
        if name.endswith("tid2eid"):
            weight.copy_(torch.rand(CONFIG.vocab_size, 5).argsort(1)[:, :2])
        else:
            weight.normal_()
    x, ids = torch.randn(3, CONFIG.hidden_size), torch.tensor([5, 6, 7])

    got = experts(x, ids)

    want = expert_formula(x, ids, named, CONFIG)
    assert_close(got, want.float(), Bounds(atol=1e-3, rtol=1e-4))


# Rows that are streamed, and rows that are sorted by expert.
@pytest.mark.parametrize("rows", [3, 500])
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_quantised_experts_give_what_plain_ones_give(
    device: torch.device, layer: int, rows: int, deterministic: bool
) -> None:
    kinds = QuantisedKinds(device, experts="fp8", deterministic=deterministic)
    plain, quantised = (
        Experts(SIZES, layer, made, OneRank())
        for made in (PlainKinds(device, torch.float32), kinds)
    )
    fill_dummy(Alone(plain.named_weights), 3)
    hand_over(quantised.named_weights(""), plain_weights(plain.named_weights("")))
    x = torch.randn(rows, SIZES.hidden_size).bfloat16()
    ids = torch.randint(SIZES.vocab_size, (rows,))

    got = quantised(x, ids)

    assert got.dtype == torch.bfloat16
    assert_close(got.float(), plain(x.float(), ids), ROUNDED)


def test_layers_are_announced_as_they_are_asked_for() -> None:
    for count, want in ((1, [0, "half"]), (3, [0, 1, "half", 2]), (4, [0, 1, "half", 2, 3])):
        config = dataclasses.replace(CONFIG, num_hidden_layers=count, compress_ratios=(0,) * count)
        wired, said = DeepseekV4(config, PLAIN, OneRank()), list[object]()

        for layer in wired.announced(lambda said=said: said.append("half")):
            said.append(wired.layers.index(layer))

        assert said == want
        assert list(wired.announced(None)) == wired.layers
