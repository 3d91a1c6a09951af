"""Kernels by time, and the gaps between them."""

from tests.bench.network.kernels_run import Span, gap_table, kernel_table

SPANS = [Span("a", 0, 10), Span("b", 5, 20), Span("a", 30, 36), Span("c", 40, 60)]


def test_kernels_are_listed_by_their_time_in_a_step() -> None:
    lines = kernel_table(SPANS, steps=2)

    assert [text.split() for text in lines[1:]] == [
        ["10.0", "0.392", "0.5", "20.00", "c"],
        ["8.0", "0.314", "1.0", "8.00", "a"],
        ["7.5", "0.294", "0.5", "15.00", "b"],
        ["25.5", "1.000", "2.0", "all"],
    ]


def test_time_is_idle_only_where_no_stream_runs() -> None:
    lines = gap_table(SPANS)

    assert lines[0] == "idle 14.0 us of 60.0 us, 23.3%; 2 gaps, the longest:"
    assert lines[1].split() == ["10.00", "us", "b", "->", "a"]
    assert gap_table([]) == ["nothing ran on the device"]
