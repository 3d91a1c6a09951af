"""Traces of requests: lines of Mooncake's format, and tokens that continue conversations."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.bench.replicas.trace import BLOCK, mooncake_trace, own_trace, page_hashes

SMALL = Path(__file__).with_name("small.jsonl")


def write(path: Path, *rows: tuple[int, int, int, list[int]]) -> Path:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return path


def test_prompts_with_the_same_blocks_have_the_same_tokens(tmp_path: Path) -> None:
    rows = (0, 1500, 10, [7, 8, 9]), (2500, 800, 20, [7, 11]), (3000, 300, 5, [12])
    calls = mooncake_trace(write(tmp_path / "t.jsonl", *rows))
    first, second, third = (call.tokens() for call in calls)

    assert [call.arrival_s for call in calls] == [0.0, 2.5, 3.0]
    assert [len(tokens) for tokens in (first, second, third)] == [1510, 820, 305]
    assert np.array_equal(first[:BLOCK], second[:BLOCK])
    assert not np.isin(second[BLOCK:], first).any()
    assert not np.isin(third, np.concatenate([first, second])).any()


def test_a_next_turn_has_the_prompt_and_the_answer_before_it(tmp_path: Path) -> None:
    """The last block of the first prompt is partial: the next turn has another one there."""
    rows = (0, 1300, 100, [1, 2, 3]), (9000, 2000, 50, [1, 2, 4, 5])
    first, second = mooncake_trace(write(tmp_path / "t.jsonl", *rows))

    assert np.array_equal(second.tokens()[:1400], first.tokens())


def test_seeds_move_times_and_nothing_else() -> None:
    recorded, moved = (mooncake_trace(SMALL, seed=seed) for seed in (0, 3))

    assert {call.number for call in recorded} == {call.number for call in moved}
    shift = {call.number: call.arrival_s for call in recorded}
    moves = [call.arrival_s - shift[call.number] for call in moved]
    assert max(moves) - min(moves) <= 6
    assert len(set(moves)) > 50
    times = [call.arrival_s for call in moved]
    assert times == sorted(times)
    assert times[0] == 0


@pytest.mark.parametrize("text", ["{", '{"timestamp": 0}', '{"input_length": 0}', "[1]"])
def test_a_line_that_is_no_request_is_named(tmp_path: Path, text: str) -> None:
    good = SMALL.read_text().splitlines()[0]
    (tmp_path / "t.jsonl").write_text(f"{good}\n{text}\n")
    with pytest.raises(ValueError, match=r"t\.jsonl:2"):
        mooncake_trace(tmp_path / "t.jsonl")


def test_hashes_of_pages_stand_for_all_before_them() -> None:
    one, other = np.arange(1000, dtype=np.int32), np.arange(1000, dtype=np.int32)
    other[300] = 7

    assert len(page_hashes(one)) == 3
    assert [a == b for a, b in zip(page_hashes(one), page_hashes(other), strict=True)] == [
        *(True, False, False)
    ]


def test_a_turn_of_our_own_trace_waits_for_the_turn_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = np.arange(100, dtype=np.int32)
    second = np.concatenate([first, np.arange(500, 530, dtype=np.int32)])
    events = [("start", 1, first, 80, 20), ("finish", 1), ("start", 2, second, 120, 10)]
    monkeypatch.setattr("tests.bench.cache.replay.load_trace", lambda _: lambda **_: iter(events))
    calls = own_trace(tmp_path, seed=1, sessions=1, requests_per_s=2.0)

    assert [(call.after, call.prompt_tokens) for call in calls] == [(None, 80), (0, 120)]
    assert calls[1].arrival_s > 0
    assert np.array_equal(calls[1].tokens(), second)
