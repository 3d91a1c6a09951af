"""The ladder of batch sizes, and who runs in which graph; on a GPU, that replays compute."""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from runtime.executor.decode_graphs import (
    WARM_UPS,
    Captured,
    DecodeGraphs,
    graph_sizes,
    uncollected,
)
from tests.testing.fused_rig import new_capture, rerun


@pytest.mark.parametrize(
    ("wanted", "rows", "sizes"),
    [
        ((), 1, (1,)),
        ((), 5, (1, 2, 4, 5)),
        ((), 64, (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)),
        ((), 128, (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)),
        ((), 300, (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 300)),
        ((8, 1, 8, 3), 8, (1, 3, 8)),
        ((8, 64), 9, (8,)),
        ((8,), 7, ()),
    ],
)
def test_the_ladder_ends_at_the_rows_that_may_run(
    wanted: tuple[int, ...], rows: int, sizes: tuple[int, ...]
) -> None:
    assert graph_sizes(wanted, rows) == sizes


def test_cycles_are_left_alone_while_a_graph_is_captured() -> None:
    seen: list[bool] = []

    def run() -> None:
        with uncollected():
            seen.append(gc.isenabled())
            raise ValueError("of the run")

    with pytest.raises(ValueError, match="of the run"):
        run()

    assert (seen, gc.isenabled()) == ([False], True)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_step_takes_the_smallest_graph_that_holds_it() -> None:
    graphs = DecodeGraphs(lambda rows: torch.zeros(rows, 2), (4, 1, 8), capture=rerun)

    assert [graphs.size_for(rows) for rows in (1, 2, 4, 5, 8, 9)] == [1, 4, 4, 8, 8, None]


def test_the_largest_is_captured_first_each_after_its_warm_ups() -> None:
    log: list[tuple[str, int]] = []

    def step(rows: int) -> Tensor:
        log.append(("run", rows))
        return torch.zeros(rows, 2)

    def capture(run: Callable[[], Tensor]) -> Captured:
        output = run()
        log.append(("captured", len(output)))
        return Captured(lambda: log.append(("replayed", len(output))), output)

    graphs = DecodeGraphs(step, (2, 6), capture=capture)
    for size in (6, 2):
        expected = [*[("run", size)] * (WARM_UPS + 1), ("captured", size)]
        assert log[: len(expected)] == expected
        del log[: len(expected)]
    assert graphs.replay(2).shape == (2, 2)
    assert log == [("replayed", 2)]


@pytest.mark.gpu
def test_on_the_gpu_graphs_of_one_pool_compute_from_what_buffers_hold_now() -> None:
    given = torch.arange(8.0, device="cuda")
    graphs = DecodeGraphs(
        lambda rows: (given[:rows, None] * 2).expand(rows, 3).cumsum(0),
        (3, 8),
        capture=new_capture(),
    )

    for shift in (0.0, 5.0):
        given.add_(shift)
        for size in (8, 3, 8):
            want = (given[:size, None] * 2).expand(size, 3).cumsum(0)
            assert torch.equal(graphs.replay(size), want)
