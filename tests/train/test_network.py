"""The trained network is the served one; and every parameter learns."""

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from layers.models.deepseek_v4.config import parse_config
from layers.models.deepseek_v4.pool_spec import RecordFormat
from tests.testing.compare import Bounds, assert_close
from tests.testing.direct import Direct, load_model
from tests.testing.recall_rows import VOCAB, small_config
from tests.train.export import write_checkpoint
from tests.train.mode import Mode
from tests.train.network import Outcome, V4Trainee
from tests.train.parameters import first_parameters, split_parameters

LENGTH = 700
PACKED = {"head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
SERVED = Mode(select=True, train_indexer=True, round_weights=True, round_records=True)


def _tokens(rows: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCAB, (rows, length), generator=generator)


def _unlike_the_first(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters as a training might leave them: none is zero, one or equal to another."""
    generator = torch.Generator().manual_seed(2)
    for tensor in named.values():
        if tensor.is_floating_point():
            spread = tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.3
            tensor += torch.randn(tensor.shape, generator=generator) * 0.7 * spread
    return named


def test_without_blocks_a_token_knows_only_what_windows_hand_on() -> None:
    config = parse_config(small_config())
    parameters = _unlike_the_first(first_parameters(config, seed=0))
    tokens = _tokens(1, LENGTH)
    other = tokens.clone()
    other[0, 0] = (tokens[0, 0] + 1) % VOCAB

    def last(row: Tensor, *hidden: int) -> Tensor:
        with torch.no_grad():
            return V4Trainee(config)(parameters, row, Mode(hidden=hidden)).logits[0, -1]

    assert torch.equal(last(tokens, 4, 128), last(other, 4, 128))
    found = [last(tokens), last(tokens, 4), last(tokens, 128), last(tokens, 4, 128)]
    for path in ((), (4,), (128,)):
        assert not torch.equal(last(tokens, *path), last(other, *path)), path
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(found, 2))


@pytest.mark.parametrize(
    ("record_format", "bounds"),
    [
        ("fp32", Bounds(atol=1e-4, rtol=1e-4)),
        # A rounding of 2^-24 can send a number to the next of fp8: measured 0.0011.
        ("fp8", Bounds(atol=0.5, rms=0.01)),
    ],
)
def test_an_exported_checkpoint_is_served_with_the_same_logits(
    record_format: RecordFormat, bounds: Bounds, tmp_path: Path
) -> None:
    raw = small_config(**(PACKED if record_format == "fp8" else {}))
    config = parse_config(raw)
    parameters = _unlike_the_first(first_parameters(config, seed=0))
    write_checkpoint(tmp_path, parameters, raw)
    served = Direct(load_model(tmp_path), record_format)
    tokens = _tokens(1, LENGTH)

    want = served.prefill(served.row(tokens[0].tolist()), logits=range(LENGTH))
    mode = Mode(select=True, round_weights=True, round_records=record_format == "fp8")
    with torch.no_grad():
        got = V4Trainee(config)(parameters, tokens, mode).logits[0]

    assert 2 * config.index_topk < LENGTH // 4
    assert_close(got, want, bounds, what="logits")


def _learnt(mode: Mode, dtype: torch.dtype = torch.float32) -> tuple[Outcome, dict[str, Tensor]]:
    """Return what a forward tells, and the gradient of every parameter."""
    config = parse_config(small_config(**(PACKED if mode.round_records else {})))
    trained, fixed = split_parameters(first_parameters(config, seed=0))
    for tensor in trained.values():
        tensor.requires_grad_()
    outcome = V4Trainee(config, dtype=dtype)({**trained, **fixed}, _tokens(2, 256), mode)
    loss = torch.logsumexp(outcome.logits, -1).square().mean()
    for report in outcome.index.values():
        loss = loss if report.loss is None else loss + report.loss
    loss.backward()
    return outcome, {
        name: tensor.grad for name, tensor in trained.items() if tensor.grad is not None
    }


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("mode", [Mode(train_indexer=True), SERVED])
def test_every_parameter_has_a_gradient(mode: Mode, dtype: torch.dtype) -> None:
    _, grads = _learnt(mode, dtype)

    config = parse_config(small_config())
    assert grads.keys() == split_parameters(first_parameters(config, seed=0))[0].keys()
    for name, grad in grads.items():
        assert grad.isfinite().all(), name
        assert grad.abs().sum() > 0, name


def test_layers_computed_again_have_the_same_gradients() -> None:
    mode = Mode(select=True, train_indexer=True)
    kept, want = _learnt(mode)
    again, got = _learnt(Mode(select=True, train_indexer=True, recompute=True))

    assert torch.equal(again.logits, kept.logits)
    for name, grad in want.items():
        assert_close(got[name], grad, Bounds(atol=1e-7, rtol=1e-4), what=name)


def test_the_indexer_takes_no_gradient_from_the_trunk_and_gives_none() -> None:
    config = parse_config(small_config())
    trained, fixed = split_parameters(first_parameters(config, seed=0))
    for tensor in trained.values():
        tensor.requires_grad_()
    parameters = {**trained, **fixed}

    outcome = V4Trainee(config)(parameters, _tokens(2, 256), Mode(train_indexer=True))
    loss = outcome.index[2].loss
    assert loss is not None
    loss.backward()

    moved = {name for name, tensor in trained.items() if tensor.grad is not None}
    moved = {name for name in moved if trained[name].grad.abs().sum() > 0}  # type: ignore[union-attr]
    assert moved == {name for name in trained if ".indexer." in name}


def test_a_probe_measures_the_indexers_recall() -> None:
    config = parse_config(small_config())
    parameters = first_parameters(config, seed=0)

    with torch.no_grad():
        outcome = V4Trainee(config)(parameters, _tokens(1, 256), Mode(measure=True))

    recall = outcome.index[2].recall
    assert recall is not None
    assert 0.1 < float(recall) < 1.0
