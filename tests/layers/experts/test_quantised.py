"""Routed experts over quantised weights, against those over plain numbers."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.quant_fp8 import quantise_rows
from layers.experts.contract import ExpertForm, ExpertSizes
from layers.experts.plain import PlainExperts
from layers.experts.quantised import QuantisedExperts, expert_workspace
from layers.linear.contract import Named, Rows
from layers.models.deepseek_v4.config import load_config
from layers.models.deepseek_v4.expert_form import expert_form
from layers.parallel.shares import Share, whole
from layers.weights.checkpoint import Checkpoint, WeightError
from layers.weights.loading import fill_dummy, load_weights
from layers.weights.quant import quantise_fp4, quantise_fp8
from tests.layers.checkpoint_files import write_single
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.tiny_model import plain_weights

TINY = ExpertSizes(whole(8), 256, whole(128), chosen=2, limit=2.5)
PREFIX = "layers.2.ffn."
FEW, MANY = 3, 1100
# Rows rounded to e4m3 are off by 2.6 % each; so are their sums over many channels.
ROUNDED = Bounds(cosine=0.998, rms=0.06, atol=torch.inf)

Routed = PlainExperts | QuantisedExperts


class _Layer:
    """One layer's experts under the names of a file."""

    def __init__(self, experts: Routed) -> None:
        self.experts = experts

    def named_weights(self) -> Named:
        yield from self.experts.named_weights(PREFIX)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """What experts are called with."""

    x: Tensor
    experts: Tensor
    weights: Tensor
    shared: Tensor

    @classmethod
    def of(cls, rows: int, sizes: ExpertSizes = TINY) -> "_Inputs":
        """Return inputs of so many rows, of two different experts each."""
        x, shared = torch.randn(2, rows, sizes.width).to(torch.bfloat16)
        ids = torch.rand(rows, sizes.experts.count).argsort(1)[:, : sizes.chosen]
        return cls(x, ids, torch.rand(rows, sizes.chosen), shared)

    def rows(self, first: int, last: int) -> "_Inputs":
        """Return some of the rows."""
        return _Inputs(*(getattr(self, name)[first:last] for name in self.__slots__))

    def over(self, experts: QuantisedExperts, *, rounded: bool = True) -> Tensor:
        """Return the sum; `rounded` says whether rows come with codes."""
        rows = Rows(self.x, rounded=quantise_rows(self.x) if rounded else None)
        return experts(self.x, rows, self.experts, self.weights, lambda: self.shared)

    def over_plain(self, experts: PlainExperts) -> Tensor:
        """Return the sum in float32 on the CPU."""
        with torch.device("cpu"):
            x, shared = self.x.cpu().float(), self.shared.cpu().float()
            return experts(x, Rows(x), self.experts.cpu(), self.weights.cpu(), lambda: shared)


def _made(sizes: ExpertSizes, form: ExpertForm, device: torch.device) -> QuantisedExperts:
    workspace = expert_workspace(sizes, device) if form == "fp4" else None
    return QuantisedExperts(sizes, device=device, form=form, workspace=workspace)


def _plain(sizes: ExpertSizes) -> PlainExperts:
    cpu = torch.device("cpu")
    with cpu:
        return PlainExperts(sizes, dtype=torch.float32, device=cpu)


def _tensors(stored: str) -> dict[str, Tensor]:
    """Tensors of a file of one layer's experts in `stored`: "fp4", "fp8" or "plain"."""
    plain = _plain(TINY)
    fill_dummy(_Layer(plain), 3)
    tensors: dict[str, Tensor] = {}
    for name, weight in plain_weights(plain.named_weights(PREFIX)).items():
        if stored == "plain":
            tensors[name] = weight.to(torch.bfloat16)
        else:
            quantise = quantise_fp4 if stored == "fp4" else quantise_fp8
            tensors[name], tensors[name.removesuffix(".weight") + ".scale"] = quantise(weight)
    return tensors


def _loaded(
    folder: Path, form: ExpertForm, device: torch.device, sizes: ExpertSizes = TINY
) -> tuple[QuantisedExperts, PlainExperts]:
    made, plain = _made(sizes, form, device), _plain(sizes)
    load_weights(_Layer(made), folder, progress=False)
    load_weights(_Layer(plain), folder, progress=False)
    return made, plain


@pytest.mark.parametrize("rows", [FEW, MANY])
@pytest.mark.parametrize(
    ("stored", "form"),
    [("fp4", "fp4"), ("fp4", "both"), ("fp4", "fp8"), ("fp8", "fp8"), ("plain", "fp8")],
)
def test_every_file_in_every_form_gives_what_plain_numbers_give(
    tmp_path: Path, stored: str, form: ExpertForm, rows: int, device: torch.device
) -> None:
    with torch.device("cpu"):
        write_single(tmp_path, _tensors(stored))
    made, plain = _loaded(tmp_path, form, device)
    inputs = _Inputs.of(rows)

    got = inputs.over(made)

    assert got.dtype == torch.bfloat16
    assert_close(got, inputs.over_plain(plain), ROUNDED)


@pytest.mark.parametrize("rows", [FEW, MANY])
def test_forms_of_one_fp4_file_agree_to_the_bit(
    tmp_path: Path, rows: int, device: torch.device
) -> None:
    """fp8 holds the same numbers, whether made at load or on the way."""
    with torch.device("cpu"):
        write_single(tmp_path, _tensors("fp4"))
    inputs = _Inputs.of(rows)

    fp4, both = (inputs.over(_loaded(tmp_path, form, device)[0]) for form in ("fp4", "both"))

    assert_same_bits(fp4, both)


@pytest.mark.parametrize("rows", [FEW, MANY])
def test_rows_without_codes_are_rounded_alike(rows: int, device: torch.device) -> None:
    made, inputs = _made(TINY, "fp8", device), _Inputs.of(rows)
    fill_dummy(_Layer(made), 3)

    assert_same_bits(inputs.over(made, rounded=False), inputs.over(made))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("rows", [FEW, MANY])
def test_what_is_added_is_asked_for_once(
    rows: int, deterministic: bool, device: torch.device
) -> None:
    made = QuantisedExperts(TINY, device=device, form="fp8", deterministic=deterministic)
    inputs, calls = _Inputs.of(rows), list[int]()

    def plus() -> Tensor:
        calls.append(rows)
        return inputs.shared

    # Weights are zeros: what is added is all there is.
    got = made(inputs.x, Rows(inputs.x), inputs.experts, inputs.weights, plus)

    assert calls == [rows]
    assert_same_bits(got, inputs.shared)


def test_layers_share_the_workspace(device: torch.device) -> None:
    workspace = expert_workspace(TINY, device)
    layers = [
        QuantisedExperts(TINY, device=device, form="fp4", workspace=workspace) for _ in range(2)
    ]
    for seed, layer in enumerate(layers):
        fill_dummy(_Layer(layer), seed)
    inputs = _Inputs.of(MANY)

    first = [inputs.over(layer) for layer in layers]
    again = [inputs.over(layer) for layer in layers]

    for one, other in zip(first, again, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("form", ["fp4", "fp8", "both"])
def test_dummy_weights_keep_the_spread_of_what_comes_in(
    form: ExpertForm, device: torch.device
) -> None:
    layers = [_made(TINY, form, device) for _ in range(2)]
    for layer in layers:
        fill_dummy(_Layer(layer), 11)
    inputs = replace(_Inputs.of(FEW), weights=torch.full((FEW, 2), 0.75))
    inputs.shared.zero_()

    got, again = (inputs.over(layer) for layer in layers)

    assert_same_bits(got, again)
    assert 0.2 < float(got.float().std()) < 3.0


@pytest.mark.parametrize("rows", [FEW, MANY])
def test_published_experts_give_what_plain_numbers_give(
    oracle_dir: Path, tmp_path: Path, rows: int, device: torch.device
) -> None:
    folder = oracle_dir / "v4_smooth_fp8"
    if not folder.is_dir():
        pytest.skip("no v4_smooth_fp8")
    config = load_config(folder)
    with Checkpoint(folder) as checkpoint:
        names = [name for name in checkpoint.headers if name.startswith(f"{PREFIX}experts.")]
        write_single(tmp_path, {name: checkpoint.tensor(name) for name in names})
    sizes = ExpertSizes(
        whole(config.n_routed_experts),
        config.hidden_size,
        whole(config.moe_intermediate_size),
        chosen=config.num_experts_per_tok,
        limit=config.swiglu_limit,
    )
    made, plain = _loaded(tmp_path, expert_form(config), device, sizes)
    inputs = _Inputs.of(rows, sizes)

    got = inputs.over(made)

    assert config.expert_dtype == "fp4"
    assert made.fp4 is not None
    assert_close(got, inputs.over_plain(plain), ROUNDED)


def test_an_fp8_file_is_refused_by_fp4_before_anything_is_read(
    tmp_path: Path, device: torch.device
) -> None:
    with torch.device("cpu"):
        write_single(tmp_path, _tensors("fp8"))
    made = _made(TINY, "fp4", device)

    with pytest.raises(WeightError, match=r"experts\.0\.w1\.weight would lose most"):
        load_weights(_Layer(made), tmp_path, progress=False)


def test_a_scale_that_cannot_be_packed_names_its_weight(
    tmp_path: Path, device: torch.device
) -> None:
    with torch.device("cpu"):
        tensors = _tensors("fp4")
        name = f"{PREFIX}experts.3.w2.scale"
        tensors[name] = torch.full(tensors[name].shape, 8.0).to(torch.float8_e8m0fnu)
        write_single(tmp_path, tensors)

    with pytest.raises(WeightError, match=r"experts\.3\.w2\.weight in model.safetensors: .*2\^3"):
        load_weights(_Layer(_made(TINY, "fp4", device)), tmp_path, progress=False)


@pytest.mark.parametrize("form", ["fp4", "fp8"])
def test_deterministic_layers_give_a_row_the_same_bits_in_any_company(
    form: ExpertForm, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 257 rows at a time.
    monkeypatch.setattr("layers.experts.quantised._FIXED_BYTES", 257 * 2 * (4 * 256 + 2 * 128))
    made = QuantisedExperts(TINY, device=device, form=form, deterministic=True)
    fill_dummy(_Layer(made), 3)
    inputs = _Inputs.of(MANY)

    whole = inputs.over(made)

    assert whole.isfinite().all()
    for first, last in ((0, 1), (1, 9), (200, 300), (1099, 1100)):
        got = inputs.rows(first, last).over(made)
        assert_same_bits(got, whole[first:last], what=f"row {first}")


def test_deterministic_layers_give_what_others_give(device: torch.device) -> None:
    fixed = QuantisedExperts(TINY, device=device, form="fp8", deterministic=True)
    free = _made(TINY, "fp8", device)
    for made in (fixed, free):
        fill_dummy(_Layer(made), 3)
    for rows in (FEW, MANY):
        inputs = _Inputs.of(rows)
        assert_close(inputs.over(fixed), inputs.over(free), ROUNDED, what=f"{rows} rows")


def test_experts_have_the_numbers_that_they_have_in_the_layer(device: torch.device) -> None:
    made = _made(replace(TINY, experts=Share(6, 2, 8)), "fp8", device)

    names = {name for name, _ in made.named_weights("ffn.")}

    assert names == {f"ffn.experts.{e}.w{i}.weight" for e in (6, 7) for i in (1, 2, 3)}


def test_fp4_alone_needs_a_workspace_and_sizes_must_fit(device: torch.device) -> None:
    with pytest.raises(ValueError, match="need a workspace"):
        QuantisedExperts(TINY, device=device, form="fp4")
    with pytest.raises(ShapeError, match="I is 64"):
        _made(replace(TINY, inner=whole(64)), "both", device)
