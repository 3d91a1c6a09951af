"""Routed and shared experts over quantised weights, against those over plain numbers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from layers.experts.expert_form import ExpertForm, expert_form
from layers.experts.plain import Experts
from layers.experts.quantised import FusedExperts, expert_workspace
from layers.models.deepseek_v4.config import ModelConfig, load_config
from layers.parallel.shares import Shards
from layers.weights.checkpoint import Checkpoint, WeightError
from layers.weights.loading import fill_dummy, load_weights
from layers.weights.quant import quantise_fp4, quantise_fp8
from layers.weights.weight_target import WeightTarget
from tests.layers.checkpoint_files import write_single
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.tiny_model import CONFIG

TINY = replace(
    CONFIG, hidden_size=256, moe_intermediate_size=128, n_routed_experts=8, expert_dtype="fp4"
)
PREFIX = "layers.2.ffn."
# Layer 0 routes by a table, layer 2 by scores.
LAYERS = (0, 2)
FEW, MANY = 3, 1100
# Rows rounded to e4m3 are off by 2.6 % each; so are their sums over many channels.
ROUNDED = Bounds(cosine=0.998, rms=0.06, atol=torch.inf)


class _Layer:
    """One layer's experts under the names of a file."""

    def __init__(self, experts: Experts | FusedExperts) -> None:
        self.experts = experts

    def named_weights(self) -> Iterator[tuple[str, Tensor | WeightTarget]]:
        yield from self.experts.named_weights(PREFIX)


def _fused(config: ModelConfig, layer: int, form: ExpertForm, device: torch.device) -> FusedExperts:
    workspace = expert_workspace(config, Shards(), device) if form == "fp4" else None
    return FusedExperts(
        config, layer, shards=Shards(), device=device, form=form, workspace=workspace
    )


def _dense(config: ModelConfig, layer: int) -> Experts:
    cpu = torch.device("cpu")
    with cpu:
        return Experts(config, layer, shards=Shards(), dtype=torch.float32, device=cpu)


def _tensors(layer: int, stored: str) -> dict[str, Tensor]:
    """Tensors of a file of one layer's experts in `stored`: "fp4", "fp8" or "plain"."""
    dense = _dense(TINY, layer)
    fill_dummy(_Layer(dense), 3)
    tensors: dict[str, Tensor] = {}
    for name, weight in dense.named_weights(PREFIX):
        kind = stored if ".experts." in name else "fp8" if "shared" in name else "other"
        scale = name.removesuffix(".weight") + ".scale"
        if kind == "other":
            tensors[name] = weight if weight.ndim == 1 else _as_gate(weight)
        elif kind == "plain":
            tensors[name] = weight.to(torch.bfloat16)
        else:
            quantise = quantise_fp4 if kind == "fp4" else quantise_fp8
            tensors[name], tensors[scale] = quantise(weight)
    return tensors


def _as_gate(weight: Tensor) -> Tensor:
    return weight.to(torch.bfloat16) if weight.is_floating_point() else weight


def _loaded(
    folder: Path,
    layer: int,
    form: ExpertForm,
    device: torch.device,
    *,
    config: ModelConfig = TINY,
) -> tuple[FusedExperts, Experts]:
    fused, dense = _fused(config, layer, form, device), _dense(config, layer)
    load_weights(_Layer(fused), folder, progress=False)
    load_weights(_Layer(dense), folder, progress=False)
    return fused, dense


def _inputs(rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, TINY.hidden_size, device=device).to(torch.bfloat16)
    return x, torch.randint(TINY.vocab_size, (rows,), device=device)


def _on_cpu(dense: Experts, x: Tensor, input_ids: Tensor) -> Tensor:
    with torch.device("cpu"):
        return dense(x.cpu().float(), input_ids.cpu())


@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("stored", "form"),
    [("fp4", "fp4"), ("fp4", "both"), ("fp4", "fp8"), ("fp8", "fp8"), ("plain", "fp8")],
)
def test_every_file_in_every_form_gives_what_plain_numbers_give(
    tmp_path: Path, stored: str, form: ExpertForm, layer: int, rows: int, device: torch.device
) -> None:
    with torch.device("cpu"):
        write_single(tmp_path, _tensors(layer, stored))
    fused, dense = _loaded(tmp_path, layer, form, device)
    x, input_ids = _inputs(rows, device)

    got = fused(x, input_ids)

    assert got.dtype == torch.bfloat16
    assert_close(got, _on_cpu(dense, x, input_ids), ROUNDED)


@pytest.mark.parametrize("rows", [FEW, MANY])
def test_forms_of_one_fp4_file_agree_to_the_bit(
    tmp_path: Path, rows: int, device: torch.device
) -> None:
    """fp8 holds the same numbers, whether made at load or on the way."""
    with torch.device("cpu"):
        write_single(tmp_path, _tensors(2, "fp4"))
    x, input_ids = _inputs(rows, device)

    fp4, both = (_loaded(tmp_path, 2, form, device)[0](x, input_ids) for form in ("fp4", "both"))

    assert_same_bits(fp4, both)


def test_layers_share_the_workspace(device: torch.device) -> None:
    workspace = expert_workspace(TINY, Shards(), device)
    layers = [
        FusedExperts(TINY, layer, shards=Shards(), device=device, form="fp4", workspace=workspace)
        for layer in LAYERS
    ]
    for seed, layer in enumerate(layers):
        fill_dummy(_Layer(layer), seed)
    x, input_ids = _inputs(MANY, device)

    first = [layer(x, input_ids) for layer in layers]
    again = [layer(x, input_ids) for layer in layers]

    for one, other in zip(first, again, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("form", ["fp4", "fp8", "both"])
def test_dummy_weights_keep_the_spread_of_what_comes_in(
    form: ExpertForm, device: torch.device
) -> None:
    layers = [_fused(TINY, 2, form, device) for _ in range(2)]
    for layer in layers:
        fill_dummy(_Layer(layer), 11)
    x, input_ids = _inputs(FEW, device)

    got, again = (layer(x, input_ids) for layer in layers)

    assert_same_bits(got, again)
    assert 0.2 < float(got.float().std()) < 3.0


@pytest.mark.parametrize("rows", [FEW, MANY])
def test_a_published_layer_gives_what_plain_numbers_give(
    oracle_dir: Path, tmp_path: Path, rows: int, device: torch.device
) -> None:
    folder = oracle_dir / "v4_smooth_fp8"
    if not folder.is_dir():
        pytest.skip("no v4_smooth_fp8")
    config = load_config(folder)
    with Checkpoint(folder) as checkpoint:
        names = [name for name in checkpoint.headers if name.startswith(PREFIX)]
        write_single(tmp_path, {name: checkpoint.tensor(name) for name in names})
    fused, dense = _loaded(tmp_path, 2, expert_form(config), device, config=config)
    x, input_ids = _inputs(rows, device)

    got = fused(x, input_ids)

    assert config.expert_dtype == "fp4"
    assert fused.fp4 is not None
    assert_close(got, _on_cpu(dense, x, input_ids), ROUNDED)


def test_an_fp8_file_is_refused_by_fp4_before_anything_is_read(
    tmp_path: Path, device: torch.device
) -> None:
    with torch.device("cpu"):
        write_single(tmp_path, _tensors(2, "fp8"))
    fused = _fused(TINY, 2, "fp4", device)

    with pytest.raises(WeightError, match=r"experts\.0\.w1\.weight would lose most"):
        load_weights(_Layer(fused), tmp_path, progress=False)


def test_a_scale_that_cannot_be_packed_names_its_weight(
    tmp_path: Path, device: torch.device
) -> None:
    with torch.device("cpu"):
        tensors = _tensors(2, "fp4")
        name = f"{PREFIX}experts.3.w2.scale"
        tensors[name] = torch.full(tensors[name].shape, 8.0).to(torch.float8_e8m0fnu)
        write_single(tmp_path, tensors)

    with pytest.raises(WeightError, match=r"experts\.3\.w2\.weight in model.safetensors: .*2\^3"):
        load_weights(_Layer(_fused(TINY, 2, "fp4", device)), tmp_path, progress=False)


@pytest.mark.parametrize("form", ["fp4", "fp8"])
@pytest.mark.parametrize("layer", LAYERS)
def test_deterministic_layers_give_a_row_the_same_bits_in_any_company(
    form: ExpertForm, layer: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 257 rows at a time.
    monkeypatch.setattr("layers.experts.quantised._FIXED_BYTES", 257 * 2 * (4 * 256 + 2 * 128))
    experts = FusedExperts(
        TINY, layer, shards=Shards(), device=device, form=form, deterministic=True
    )
    fill_dummy(_Layer(experts), 3)
    x, input_ids = _inputs(MANY, device)

    whole = experts(x, input_ids)

    assert whole.isfinite().all()
    for first, last in ((0, 1), (1, 9), (200, 300), (1099, 1100)):
        got = experts(x[first:last], input_ids[first:last])
        assert_same_bits(got, whole[first:last], what=f"row {first}")


def test_deterministic_layers_give_what_others_give(device: torch.device) -> None:
    fixed = FusedExperts(TINY, 2, shards=Shards(), device=device, form="fp8", deterministic=True)
    free = _fused(TINY, 2, "fp8", device)
    for experts in (fixed, free):
        fill_dummy(_Layer(experts), 3)
    for rows in (FEW, MANY):
        x, input_ids = _inputs(rows, device)
        assert_close(fixed(x, input_ids), free(x, input_ids), ROUNDED, what=f"{rows} rows")


def test_fp4_alone_needs_a_workspace_and_sizes_must_fit(device: torch.device) -> None:
    shards = Shards()
    with pytest.raises(ValueError, match="need a workspace"):
        FusedExperts(TINY, 0, shards=shards, device=device, form="fp4")
    with pytest.raises(ShapeError, match="I is 64"):
        _fused(replace(TINY, moe_intermediate_size=64), 0, "both", device)
