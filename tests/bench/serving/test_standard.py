"""The standard set: the same runs for every server, and a table of what they gave."""

import asyncio
import csv
from pathlib import Path

import pytest

from tests.bench.serving.fake_server import fake_server
from tests.bench.serving.options import parse
from tests.bench.serving.play import play
from tests.bench.serving.standard import COLUMNS, PEER, Run, best_of, cells, main, runs
from tests.bench.serving.summary import summarise
from tests.bench.serving.test_summary import two_turns


def test_every_run_is_one_that_the_command_knows() -> None:
    found = list(runs((1, 64)))

    assert [run.name for run in found][-3:] == ["decode x 1", "decode x 64", "turns"]
    assert len([parse(run.flags) for run in found]) == 7


def test_contexts_of_a_batch_stay_cached_for_the_next_one() -> None:
    small, large = (parse(run.flags) for run in runs((2, 3), scale=256, phases=("decode",)))

    assert (small.flush_cache, large.flush_cache) == (True, False)
    assert small.prefill_first
    assert large.numbers() == (
        "requests=3 input_tokens=32 output_tokens=4 range_ratio=1.0 prefill_first=True"
    )


def test_the_peer_has_a_figure_for_every_run_and_turn() -> None:
    best = best_of(PEER)
    turns = {f"turn {nth}" for nth in range(1, 5)}

    assert set(best) == {run.name for run in runs((1, 16, 64, 128))} | turns
    assert best["decode x 64"][COLUMNS.index("ITL p50 ms")] == 10.27
    assert best["prefill 8192 x 8"][COLUMNS.index("tokens/s")] == 109_791


def test_a_prefill_counts_its_prompts_and_a_decode_its_answers() -> None:
    told = summarise(two_turns(), [0, 0])

    assert cells(Run("prefill", "p", ()), told)[0] == pytest.approx(9 / 1.9)
    assert cells(Run("decode", "d", ()), told)[0] == pytest.approx(4 / 1.9)


def test_prefilled_prompts_are_not_part_of_the_run() -> None:
    async def run() -> None:
        async with fake_server() as server:
            flags = ["--url", server.url, "--quiet", "--warmup-requests", "0", "--prefill-first"]
            sizes = ["--requests", "2", "--input-tokens", "6", "--output-tokens", "3"]

            played = await play(parse(["random", *flags, *sizes]))

            asked = [body["sampling_params"]["max_new_tokens"] for body in server.bodies]
            assert asked == [1, 1, 3, 3]
            assert (played.summary.requests, played.summary.output_tokens) == (2, 6)
            assert played.summary.ideal_share == pytest.approx(5 / 6)

    asyncio.run(run())


@pytest.mark.parametrize("answer", [1, 20])
def test_a_warm_up_wants_no_more_room_than_the_run(answer: int) -> None:
    async def run() -> None:
        async with fake_server() as server:
            sizes = ["--requests", "1", "--input-tokens", "6", "--output-tokens", str(answer)]

            await play(parse(["random", "--url", server.url, "--quiet", *sizes]))

            asked = [body["sampling_params"]["max_new_tokens"] for body in server.bodies]
            assert asked == [min(answer, 8), answer]

    asyncio.run(run())


def test_the_set_is_run_told_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "runs.csv"

    async def run() -> int:
        async with fake_server() as server:
            argv = ["--url", server.url, "--csv", str(table), "--scale", "512", "--batches", "2"]
            return await asyncio.to_thread(main, argv)

    assert asyncio.run(run()) == 0

    names = [line[:20].strip() for line in capsys.readouterr().out.splitlines()]
    assert names[1:7] == [
        "prefill 8192 x 1", "prefill 8192 x 8", "prefill 65536 x 1", "prefill 65536 x 8",
        "decode x 2", "turns",
    ]  # fmt: skip
    rows = list(csv.DictReader(table.read_text("utf-8").splitlines()))
    assert [row["requests"] for row in rows] == ["1", "8", "1", "8", "2", "8"]
    assert "max_concurrency=8" in rows[1]["numbers"]


def test_a_server_that_is_not_there_ends_the_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9", "--phases", "turns"]) == 1
    assert "error: turns: ClientConnectorError" in capsys.readouterr().err
