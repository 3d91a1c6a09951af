"""Metrics name shares, and show neither keys nor addresses."""

from runtime.messages import State
from runtime.server.metrics import Metrics
from runtime.share import ShareState


def test_each_key_has_its_waits_and_addresses_are_together() -> None:
    shares = {"a": ShareState(2, 1, 4, 1.5), "@": ShareState(3), "": ShareState(running=1)}
    state = State(0, {}, {"queued_tokens": 40.0}, shares=shares, queue_s=2.5)

    lines = Metrics("m").render(state).decode().splitlines()

    for line in (
        'umbra:share_waiting_reqs{model_name="m",share="a"} 2.0',
        'umbra:share_running_reqs{model_name="m",share="a"} 1.0',
        'umbra:share_started_requests_total{model_name="m",share="a"} 4.0',
        'umbra:share_wait_seconds_total{model_name="m",share="a"} 1.5',
        'umbra:share_waiting_reqs{model_name="m",share="(addresses)"} 3.0',
        'umbra:share_running_reqs{model_name="m",share="(default)"} 1.0',
        'umbra:queue_seconds{model_name="m"} 2.5',
        'umbra:queued_tokens{model_name="m"} 40.0',
    ):
        assert line in lines
