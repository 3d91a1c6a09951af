"""Filling a network from files, and with random numbers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from layers.models.deepseek_v4.config import load_config
from layers.models.deepseek_v4.model import ReferenceV4
from layers.weights.checkpoint import Checkpoint
from layers.weights.loading import WeightError, fill_dummy, load_weights
from layers.weights.quant import quantise_fp4, quantise_fp8
from layers.weights.weight_target import Fp8Target, WeightTarget
from tests.layers.checkpoint_files import write_shards, write_single
from tests.testing.tiny_model import plain_weights

ATTN = "layers.0.attn.wq_a.weight"
EXPERT = "layers.0.ffn.experts.0.w1.weight"
GATE = "layers.0.ffn.gate.weight"
TABLE = "layers.0.ffn.gate.tid2eid"


class FakeModel:
    """Holds dense tensors under published names."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        self.weights = {
            name: torch.full(shape, -1, dtype=torch.int32 if name.endswith("tid2eid") else dtype)
            for name, shape in shapes.items()
        }

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.weights.items()


def _model(dtype: torch.dtype = torch.float32) -> FakeModel:
    shapes = {
        ATTN: (130, 200),
        EXPERT: (20, 64),
        GATE: (4, 16),
        TABLE: (10, 2),
        "norm.weight": (8,),
    }
    return FakeModel(shapes, dtype)


def _file() -> dict[str, Tensor]:
    """Tensors of a file that fits `_model`."""
    torch.manual_seed(1)
    attn, attn_scale = quantise_fp8(torch.randn(130, 200))
    expert, expert_scale = quantise_fp4(torch.randn(20, 64))
    return {
        ATTN: attn,
        ATTN.replace(".weight", ".scale"): attn_scale,
        EXPERT: expert,
        EXPERT.replace(".weight", ".scale"): expert_scale,
        GATE: torch.randn(4, 16).to(torch.bfloat16),
        TABLE: torch.randint(0, 4, (10, 2)),
        "norm.weight": torch.randn(8),
    }


def _dequantised(tensors: dict[str, Tensor], name: str) -> Tensor:
    """An independent formula: gather by index, multiply in float64."""
    codes = tensors[name]
    scale = tensors[name.replace(".weight", ".scale")].to(torch.float64)
    rows = torch.arange(codes.shape[0])
    if codes.dtype == torch.float8_e4m3fn:
        columns = torch.arange(codes.shape[1])
        return codes.to(torch.float64) * scale[rows[:, None] // 128, columns // 128]
    columns = torch.arange(2 * codes.shape[1])
    nibble = (codes.to(torch.int64) & 255)[:, columns // 2] >> 4 * (columns % 2) & 15
    exponent, mantissa = nibble >> 1 & 3, (nibble & 1).to(torch.float64)
    magnitude = torch.where(exponent > 0, (2 + mantissa) * 2.0 ** (exponent - 2), mantissa / 2)
    return torch.where(nibble > 7, -magnitude, magnitude) * scale[rows[:, None], columns // 32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_format_lands_in_the_dtype_of_the_network(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = _file()
    write_single(tmp_path, tensors)
    model = _model(dtype)

    load_weights(model, tmp_path, progress=False)

    for name in (ATTN, EXPERT):
        want = _dequantised(tensors, name).to(torch.float32).to(dtype)
        assert torch.equal(model.weights[name], want)
    assert torch.equal(model.weights[GATE], tensors[GATE].to(dtype))
    assert torch.equal(model.weights["norm.weight"], tensors["norm.weight"].to(dtype))
    assert torch.equal(model.weights[TABLE], tensors[TABLE].to(torch.int32))


def test_a_weight_and_its_scale_may_be_in_different_shards(tmp_path: Path) -> None:
    tensors = _file()
    whole, parted = _model(), _model()
    (tmp_path / "whole").mkdir()
    (tmp_path / "parted").mkdir()
    write_single(tmp_path / "whole", tensors)
    scales = {name: tensor for name, tensor in tensors.items() if name.endswith(".scale")}
    rest = {name: tensor for name, tensor in tensors.items() if name not in scales}
    write_shards(tmp_path / "parted", [rest, scales])

    load_weights(whole, tmp_path / "whole", progress=False)
    load_weights(parted, tmp_path / "parted", progress=False)

    assert all(torch.equal(parted.weights[name], whole.weights[name]) for name in whole.weights)


def test_the_draft_head_is_passed_over(tmp_path: Path) -> None:
    extra = {"mtp.0.norm.weight": torch.zeros(3), "mtp.0.e_proj.scale": torch.zeros(1, 1)}
    write_single(tmp_path, _file() | extra)

    load_weights(_model(), tmp_path, progress=False)


def test_the_bar_goes_to_stderr_and_can_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_single(tmp_path, _file())

    load_weights(_model(), tmp_path, progress=False)
    assert capsys.readouterr() == ("", "")

    load_weights(_model(), tmp_path)
    out, err = capsys.readouterr()
    assert (out, "Loading safetensors checkpoint shards" in err) == ("", True)


def _without(name: str) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.__delitem__(name)


def _with(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], None]:
    return lambda tensors: tensors.__setitem__(name, tensor)


ATTN_SCALE = ATTN.replace(".weight", ".scale")
EXPERT_SCALE = EXPERT.replace(".weight", ".scale")
NAN_SCALE = torch.full((2, 2), 255, dtype=torch.uint8).view(torch.float8_e8m0fnu)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without("norm.weight"), "norm.weight is missing"),
        (_without(ATTN_SCALE), f"{ATTN} is F8_E4M3 and has no scale"),
        (_with("layers.1.x", torch.ones(1)), "layers.1.x is unexpected"),
        (_with("norm.scale", torch.ones(1)), "norm.weight is F32 and has a scale"),
        (_with("norm.weight", torch.ones(9)), r"norm.weight has shape \[9\], expected \[8\]"),
        (_with("norm.weight", torch.ones(8).long()), "norm.weight is I64, expected BF16 or"),
        (_with("norm.weight", torch.ones(8).to(torch.int8)), "norm.weight is I8, expected BF16 or"),
        (_with(TABLE, torch.ones(10, 2)), f"{TABLE} is F32, expected I64"),
        (_with(EXPERT, torch.ones(20, 64).to(torch.int8)), r"has shape \[20, 64\], expected"),
        (_with(ATTN_SCALE, torch.ones(2, 3)), r"scale that has shape \[2, 3\], expected \[2, 2\]"),
        (_with(EXPERT_SCALE, torch.ones(20, 1)), r"scale that has shape \[20, 1\], expected"),
        (_with(ATTN_SCALE, torch.ones(2, 2).half()), "has a scale of F16"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_copied(
    tmp_path: Path, damage: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    tensors = _file()
    damage(tensors)
    write_single(tmp_path, tensors)
    model = _model()

    with pytest.raises(WeightError, match=message):
        load_weights(model, tmp_path, progress=False)

    assert all((weight == -1).all() for weight in model.weights.values())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_with(ATTN_SCALE, NAN_SCALE), f"{ATTN_SCALE} in model.safetensors holds NaN"),
        (_with(ATTN_SCALE, torch.full((2, 2), torch.inf)), "holds NaN"),
        (_with(TABLE, torch.full((10, 2), 4)), f"{TABLE} in .* holds experts 4 to 4, there are 4"),
        (_with(TABLE, torch.full((10, 2), -1)), "holds experts -1 to -1"),
    ],
)
def test_values_that_cannot_be_are_named(
    tmp_path: Path, damage: Callable[[dict[str, Tensor]], None], message: str
) -> None:
    tensors = _file()
    damage(tensors)
    write_single(tmp_path, tensors)

    with pytest.raises(WeightError, match=message):
        load_weights(_model(), tmp_path, progress=False)


def test_many_faults_are_counted(tmp_path: Path) -> None:
    write_single(tmp_path, _file() | {f"layers.9.x{i}": torch.ones(1) for i in range(10)})

    with pytest.raises(WeightError, match=r"and 2 more$"):
        load_weights(_model(), tmp_path, progress=False)


class Quantised:
    """Holds one weight of [128, 256] as fp8, and a plain one."""

    def __init__(self) -> None:
        codes = torch.zeros(128, 256, dtype=torch.float8_e4m3fn)
        self.target, self.norm = Fp8Target(codes, torch.zeros(1, 2)), torch.zeros(8)

    def named_weights(self) -> Iterator[tuple[str, Tensor | WeightTarget]]:
        yield ATTN, self.target
        yield "norm.weight", self.norm


def _quantised_file(weight: Tensor, scale: Tensor | None) -> dict[str, Tensor]:
    tensors = {ATTN: weight, "norm.weight": torch.ones(8)}
    return tensors | ({} if scale is None else {ATTN_SCALE: scale})


def test_quantised_storage_takes_every_format(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weight = torch.randn(128, 256)
    for number, (codes, scale) in enumerate(
        [quantise_fp8(weight), quantise_fp4(weight), (weight.bfloat16(), None)]
    ):
        tensors = _quantised_file(codes, scale)
        folder = tmp_path / str(number)
        folder.mkdir()
        write_single(folder, tensors)
        model = Quantised()

        load_weights(model, folder, progress=False)

        by_block = model.target.scales.repeat_interleave(128, 1)
        got = model.target.codes.double() * by_block
        if scale is None:
            want_codes, want_scale = quantise_fp8(codes)
            want = _dequantised(_quantised_file(want_codes, want_scale), ATTN)
        else:
            want = _dequantised(tensors, ATTN)
        assert torch.equal(got, want)
        assert (model.norm == 1).all()
        told = ["1 weights of plain numbers are rounded to what the device keeps"]
        assert [record.message for record in caplog.records] == (told if scale is None else [])


def test_numbers_that_fp8_must_round_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scale = torch.ones(128, 8)
    scale[7, 3] = 2.0**-20
    codes = torch.full((128, 128), 0x33, dtype=torch.int8)
    write_single(tmp_path, _quantised_file(codes, scale))

    load_weights(Quantised(), tmp_path, progress=False)

    assert [record.message for record in caplog.records] == [
        "32 numbers of fp4 weights were rounded to fp8"
    ]


@pytest.mark.parametrize(
    ("weight", "scale", "message"),
    [
        (torch.zeros(128, 200), None, r"has shape \[128, 200\], expected \[128, 256\]"),
        (torch.zeros(128, 256).long(), None, "is I64, expected BF16 or"),
        (torch.zeros(128, 256).to(torch.float8_e4m3fn), None, "is F8_E4M3 and has no scale"),
        (torch.zeros(128, 256), torch.ones(1, 2), "is F32 and has a scale"),
        (torch.zeros(128, 128).to(torch.int8), torch.ones(128, 7), r"scale that has shape"),
        (torch.zeros(128, 128).to(torch.int8), torch.full((128, 8), torch.nan), "holds NaN"),
        (torch.zeros(128, 128).to(torch.int8), torch.full((128, 8), 4.0), r"safetensors: .* 2\^2"),
    ],
)
def test_quantised_storage_is_as_strict(
    tmp_path: Path, weight: Tensor, scale: Tensor | None, message: str
) -> None:
    write_single(tmp_path, _quantised_file(weight, scale))
    model = Quantised()

    with pytest.raises(WeightError, match=message):
        load_weights(model, tmp_path, progress=False)

    assert (model.target.scales == 0).all()


def test_dummy_weights_fill_quantised_storage_by_seed() -> None:
    models = [Quantised(), Quantised(), Quantised()]

    for model, seed in zip(models, (5, 5, 6), strict=True):
        fill_dummy(model, seed)

    first, second, other = (model.target.codes.float() for model in models)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert (models[0].norm == 1).all()


def test_dummy_weights_repeat_by_seed_and_fill_everything() -> None:
    first, second, other = _model(), _model(), _model()

    fill_dummy(first, 5)
    fill_dummy(second, 5)
    fill_dummy(other, 6)

    for name, weight in first.weights.items():
        assert torch.equal(weight, second.weights[name])
        assert not (weight == -1).all()
    assert not torch.equal(first.weights[ATTN], other.weights[ATTN])
    assert set(first.weights[TABLE].flatten().tolist()) <= set(range(4))


def test_a_published_file_equals_the_independent_formula(oracle_dir: Path) -> None:
    folder = oracle_dir / "v4_smooth_fp8"
    if not folder.is_dir():
        pytest.skip("no v4_smooth_fp8")
    with Checkpoint(folder) as checkpoint:
        tensors = {name: checkpoint.tensor(name) for name in checkpoint.headers}
    model = _model_of(tensors)

    load_weights(model, folder, progress=False)

    attention = [f"attn.{part}.weight" for part in ("wq_a", "wkv", "wo_a", "wo_b", "indexer.wq_b")]
    experts = [
        f"ffn.{part}.weight" for part in ("experts.3.w1", "experts.7.w2", "shared_experts.w3")
    ]
    for name in [f"layers.2.{part}" for part in attention + experts]:
        assert torch.equal(model.weights[name].double(), _dequantised(tensors, name)), name


def _model_of(tensors: dict[str, Tensor]) -> FakeModel:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in tensors.items():
        if name.startswith("mtp.") or name.removesuffix(".scale") + ".weight" in tensors:
            continue
        packed = tensor.dtype == torch.int8
        shapes[name] = (tensor.shape[0], 2 * tensor.shape[1]) if packed else tuple(tensor.shape)
    return FakeModel(shapes, torch.float32)


def _assert_network_holds_the_file(folder: Path) -> None:
    network = ReferenceV4(load_config(folder), torch.device("cpu"), torch.float32)
    with Checkpoint(folder) as checkpoint:
        tensors = {name: checkpoint.tensor(name) for name in checkpoint.headers}
    plain = _model_of(tensors)

    load_weights(plain, folder, progress=False)
    load_weights(network, folder, progress=False)

    views = plain_weights(network.named_weights())
    assert views.keys() == plain.weights.keys()
    # Compared after all is loaded: two names that share memory would show.
    for name, view in views.items():
        assert torch.equal(view.to(torch.float32), plain.weights[name].to(torch.float32)), name


def test_the_network_and_the_stand_in_have_the_same_weights(stand_in: Path) -> None:
    _assert_network_holds_the_file(stand_in)


def test_the_network_and_a_published_file_have_the_same_weights(oracle_v4_small: Path) -> None:
    _assert_network_holds_the_file(oracle_v4_small)


def test_dummy_weights_fill_the_network(oracle_v4_small: Path) -> None:
    network = ReferenceV4(load_config(oracle_v4_small), torch.device("cpu"), torch.bfloat16)
    weights = plain_weights(network.named_weights())
    for view in weights.values():
        view.fill_(-9)

    fill_dummy(network, 0)

    for name, view in weights.items():
        assert not (view == -9).any(), name


def test_a_head_that_is_the_embedding_may_be_in_the_file_as_well(tmp_path: Path) -> None:
    model = FakeModel({"model.embed_tokens.weight": (6, 4)}, torch.float32)
    table = torch.randn(6, 4)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    tensors = {"model.embed_tokens.weight": table, "lm_head.weight": table.clone(), **extra}
    write_single(tmp_path, tensors)

    load_weights(model, tmp_path, progress=False)

    assert torch.equal(model.weights["model.embed_tokens.weight"], table)
    write_single(tmp_path, {**tensors, "lm_head.weight": table + 1})
    with pytest.raises(WeightError, match=r"lm_head\.weight in .* is not the embedding"):
        load_weights(model, tmp_path, progress=False)
