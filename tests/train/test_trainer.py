"""A run: slices, what is kept between them, and that it learns."""

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from layers.models.deepseek_v4.config import parse_config
from runtime.default_model.folder import CHECKPOINT
from tests.testing.recall_rows import PAIRS, RecallRows, small_config
from tests.train.exam import EXAMINED, Exams
from tests.train.export import write_checkpoint
from tests.train.mode import Mode
from tests.train.phases import Phase, first_step
from tests.train.run_log import read_log
from tests.train.run_state import StateError
from tests.train.source import Shards
from tests.train.trainer import EXAM_LOG, LOG, Diverged, RunSettings, Trainer

_DENSE = Mode(train_indexer=True)
_SPARSE = Mode(select=True, train_indexer=True, round_weights=True)
PHASES = (
    Phase("dense", 128, 256, 128, 3, _DENSE),
    Phase("sparse", 256, 512, 512, 3, _SPARSE, text_weight=0.5),
)
SETTINGS = RunSettings(log_every=1, probe_every=2)
RAW = small_config(hidden_size=32, index_topk=8)


class _Clock:
    """Seconds that pass only when somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def _trainer(folder: Path, settings: RunSettings = SETTINGS) -> Trainer:
    return Trainer(
        parse_config(RAW), PHASES, folder, source=RecallRows(), settings=settings, clock=_Clock()
    )


def _column(folder: Path, name: str) -> list[str]:
    return [row[name] for row in read_log(folder / LOG)]


def test_steps_of_votes_alone_train_no_indexer(tmp_path: Path) -> None:
    phases = [replace(PHASES[1], whole_every=2, steps=4)]
    config = parse_config(RAW)
    Trainer(config, phases, tmp_path, source=RecallRows(), settings=SETTINGS).train()

    told = [math.isnan(float(value)) for value in _column(tmp_path, "index_kl")]
    assert told == [False, True, False, True]
    assert all(math.isfinite(float(value)) for value in _column(tmp_path, "loss"))


@pytest.mark.slow
def test_a_run_is_examined_as_it_goes_on_and_at_each_phases_end(tmp_path: Path) -> None:
    """Over shards of real dialogues, some of them votes, with a network as small as can be."""
    path = CHECKPOINT / "tokenizer.json"
    config = parse_config(small_config(hidden_size=32, vocab_size=2048))
    phases = [
        Phase("whole", 512, 1024, 1024, 3, _SPARSE, whole_every=2),
        Phase("last", 768, 1536, 768, 1, _SPARSE),
    ]
    trainer = Trainer(
        config,
        phases,
        tmp_path,
        source=Shards(tmp_path / "shards", tokenizer=path, seed=0, workers=1),
        settings=replace(SETTINGS, exam_every=2),
        exams=Exams(path, rows=2),
    )

    assert trainer.train()

    rows = read_log(tmp_path / EXAM_LOG)
    asked = [(row["step"], row["phase"], row["length"]) for row in rows if row["hidden"] == ""]
    places = [("2", "whole", "512"), ("3", "whole", "512"), ("4", "last", "768")]
    assert asked == [place for place in places for _ in EXAMINED]
    assert [row["hidden"] for row in rows if row["task"] == "votes"] == ["", "128", "4"] * 3
    assert all(int(row["asked"]) > 0 and 0.0 <= float(row["right"]) <= 1.0 for row in rows)


def test_a_resumed_run_is_the_run_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = _trainer(tmp_path / "whole")
    assert whole.train()

    first = _trainer(tmp_path / "parts")
    assert not first.train(until=12.0)
    stopped = first.progress.step
    assert 0 < stopped < 6
    first.save()
    first.train(until=first._clock() + 5.0)
    second = _trainer(tmp_path / "parts")
    second.resume()
    assert second.progress.step == stopped
    assert second.train()

    for name in ("step", "tokens", "loss", "accuracy", "index_kl", "grad_norm", "load_most"):
        assert _column(tmp_path / "parts", name) == _column(tmp_path / "whole", name), name
    for name, tensor in whole.parameters.items():
        assert torch.equal(tensor, second.parameters[name]), name


def test_the_log_tells_of_every_step(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.train()

    rows = read_log(tmp_path / LOG)
    assert [row["phase"] for row in rows] == ["dense"] * 3 + ["sparse"] * 3
    assert [int(row["tokens"]) for row in rows] == [256, 512, 768, 1280, 1792, 2304]
    for row in rows:
        assert 0.0 < float(row["load_least"]) <= 0.25 <= float(row["load_most"]) < 1.0
        assert all(math.isfinite(float(row[name])) for name in ("loss", "index_kl", "grad_norm"))
    assert 0.0 < float(rows[-1]["recall"]) <= 1.0


def test_micro_batches_add_up_to_the_step(tmp_path: Path) -> None:
    losses: list[str] = []
    for micro in (128, 256):
        phases = [replace(PHASES[0], micro=micro, steps=2)]
        folder = tmp_path / str(micro)
        config = parse_config(RAW)
        trainer = Trainer(config, phases, folder, source=RecallRows(), settings=SETTINGS)
        trainer.train()
        losses += [f"{float(value):.4f}" for value in _column(folder, "loss")]
    assert losses[:2] == losses[2:]


def test_parameters_alone_can_be_taken_up(tmp_path: Path) -> None:
    first = _trainer(tmp_path / "one")
    first.train(until=12.0)
    first.save(tmp_path / "portable")

    second = _trainer(tmp_path / "two")
    second.take_up(tmp_path / "portable")

    assert second.progress.step == second.progress.lost_at == first.progress.step
    for name, tensor in second.parameters.items():
        torch.testing.assert_close(tensor, first.parameters[name], rtol=2**-8, atol=0.0)
    assert second.train()
    assert float(_column(tmp_path / "two", "rate")[0]) < 0.3 * SETTINGS.rate


def test_a_checkpoint_can_be_taken_up_where_a_phase_begins(tmp_path: Path) -> None:
    first = _trainer(tmp_path / "one")
    write_checkpoint(tmp_path / "model", first.parameters, RAW)
    begins = first_step(PHASES, "sparse")

    second = _trainer(tmp_path / "two")
    second.take_up(tmp_path / "model", step=begins)
    assert second.progress.step == second.progress.lost_at == begins
    assert second.train()

    assert _column(tmp_path / "two", "phase") == ["sparse"] * 3


def test_a_run_without_a_state_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(StateError):
        _trainer(tmp_path).resume()


def test_a_run_that_diverges_says_so(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    with torch.no_grad():
        trainer.parameters["embed.weight"].fill_(torch.nan)

    with pytest.raises(Diverged, match="step 1"):
        trainer.train()


def test_routers_are_nudged_towards_even_loads(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, dataclasses.replace(SETTINGS, balance_rate=0.01, rate=1e-5))
    trainer.train()

    bias = trainer.parameters["layers.2.ffn.gate.bias"]
    assert float(bias.min()) < 0.0 < float(bias.max())


def test_progress_is_readable(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    assert not trainer.train(until=4.0)
    trainer.save()

    step = trainer.progress.step
    held = json.loads((tmp_path / "state" / "progress.json").read_text())
    assert 0 < step <= PHASES[0].steps
    assert (held["step"], held["tokens"], held["moment_steps"]) == (step, 256 * step, step)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tiny_network_learns_to_find_values_beyond_the_window(tmp_path: Path) -> None:
    """Pairs stand in the first 32 tokens, so that from token 96 on only blocks hold them."""
    raw = small_config(sliding_window=32, compress_ratios=[0, 0, 4], index_topk=8)
    dense = Phase("dense", 160, 16 * 160, 16 * 160, 180, _DENSE)
    phases = [dense, replace(dense, name="sparse", mode=_SPARSE, steps=20)]
    source, settings = RecallRows(), RunSettings(log_every=20)
    trainer = Trainer(parse_config(raw), phases, tmp_path, source=source, settings=settings)

    trainer.train()

    rows = read_log(tmp_path / LOG)
    assert float(rows[0]["accuracy"]) < 3 / PAIRS
    assert float(rows[-1]["accuracy"]) > 0.95
    assert float(rows[-1]["recall"]) > 0.6
    with source.open(phases[1], 10_000) as opened:
        ids, weights = opened.next()
    tokens, asked = torch.from_numpy(ids), torch.from_numpy(weights) == 1.0
    asked[:, :96] = False
    with torch.no_grad():
        logits = trainer._probed(trainer.parameters, tokens, _SPARSE).logits
    right = (logits[:, :-1].argmax(-1) == tokens[:, 1:]) & asked[:, 1:]
    assert float(right.sum() / asked.sum()) > 0.95
