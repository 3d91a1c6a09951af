"""Durations of a request's stages, from readings of a clock."""

from runtime.scheduler.times import RequestTimes


def test_stages_follow_each_other_without_a_gap() -> None:
    times = RequestTimes(10.0)

    times.admitted(11.0)
    times.computed(14.0)
    times.ended(22.0)

    assert (times.queue_s, times.prefill_s, times.decode_s) == (1.0, 3.0, 8.0)


def test_who_loses_its_row_before_its_prompt_is_computed_waits_again() -> None:
    times = RequestTimes(10.0)
    times.admitted(11.0)
    times.queued(13.0)
    times.admitted(18.0)

    times.computed(19.0)

    assert (times.queue_s, times.prefill_s) == (6.0, 3.0)


def test_what_happens_after_the_first_token_is_decoding() -> None:
    times = RequestTimes(0.0)
    times.admitted(1.0)
    times.computed(2.0)

    times.queued(3.0)
    times.admitted(5.0)
    times.computed(6.0)
    times.ended(7.0)

    assert (times.queue_s, times.prefill_s, times.decode_s) == (1.0, 1.0, 5.0)


def test_a_prompt_that_was_never_computed_has_decoded_nothing() -> None:
    times = RequestTimes(0.0)
    times.admitted(1.0)

    times.ended(9.0)

    assert times.decode_s == 0.0


def test_a_traced_request_notes_its_chunks_until_its_prompt_is_computed() -> None:
    times, other = RequestTimes(10.0, traced=True), RequestTimes(10.0)
    for one in (times, other):
        one.chunk(64, 11.0)
        one.chunk(90, 13.0)
        one.computed(13.0)
        one.chunk(95, 20.0)  # what it had said, after it had lost its row

    assert times.chunks == [(64, 1.0), (90, 3.0)]
    assert other.chunks == []
