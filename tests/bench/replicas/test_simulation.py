"""The simulation of replicas: every request is answered, and the figures are those asked for."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.bench.replicas.__main__ import POLICIES, main
from tests.bench.replicas.simulation import TURN_S, Fleet, simulate
from tests.bench.replicas.step_model import StepModel
from tests.bench.replicas.trace import Call, mooncake_trace

SMALL = Path(__file__).with_name("small.jsonl")
FLEET = Fleet(4, 60_000, StepModel(4000.0, rows=8))


@pytest.mark.parametrize("seed", [0, 5])
def test_the_exact_router_has_the_hits_of_one_pooled_cache_and_the_tails_of_the_least_load(
    seed: int,
) -> None:
    calls = mooncake_trace(SMALL, seed=seed)
    found = {name: simulate(calls, FLEET, name, seed=seed) for name in POLICIES}
    ours = found["exact"]

    assert ours.hit >= 0.9 * found["pooled"].hit
    assert ours.percentile(0.99) <= found["least-load"].percentile(0.99)
    for other in ("random", "ray-prefix"):
        assert ours.hit > found[other].hit
        assert ours.percentile(0.99) < found[other].percentile(0.99)
    for outcome in found.values():
        assert len(outcome.ttft_s) == len(calls)
        assert (outcome.ttft_s > 0).all()
        assert outcome.total_s > outcome.ttft_s.mean()


def test_a_simulation_repeats_itself() -> None:
    calls = mooncake_trace(SMALL, limit=40)
    one, other = (simulate(calls, FLEET, "exact") for _ in range(2))

    assert one.hit == other.hit
    assert np.array_equal(one.ttft_s, other.ttft_s)


def test_a_turn_is_sent_after_the_answer_before_it() -> None:
    first = np.arange(3000, dtype=np.int32)
    second = np.arange(4000, dtype=np.int32)
    calls = [
        Call(0, 0.0, 2900, 100, lambda: first),
        Call(1, 0.1, 3900, 100, lambda: second, after=0),
    ]
    outcome = simulate(calls, FLEET, "round-robin")
    alone = simulate(calls[:1], FLEET, "exact").makespan_s
    assert outcome.makespan_s > 2 * alone + TURN_S

    shared = simulate(calls, FLEET, "exact")
    assert shared.hit * (2900 + 3900) == pytest.approx(3000, abs=256)


def test_the_command_prints_a_table_and_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    command = ["--replicas", "4", "--trace", str(SMALL), "--tokens", "60e3", "--prefill-rate"]
    main([*command, "4000", "--rows", "8", "--requests", "40", "--output-file", str(out)])

    printed = capsys.readouterr().out
    assert all(f"| small | {policy} | 0." in printed for policy in POLICIES)
    assert "exact against pooled" in printed
    [cell] = json.loads(out.read_text())
    assert set(cell["policies"]) == set(POLICIES)
    assert cell["policies"]["exact"]["hit"] > cell["policies"]["random"]["hit"]


def test_pictures_are_drawn_where_matplotlib_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    main(["--trace", str(SMALL), "--requests", "9", "--plot", str(tmp_path), "--tokens", "6e4"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hits_and_tails.svg", "ttft.svg"]
