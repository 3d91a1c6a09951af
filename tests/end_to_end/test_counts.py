"""What a server tells of its requests is what its clients saw of them."""

import contextlib

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.end_to_end.pools import wait_idle
from tests.testing.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(stand_in_server: ServerProcess) -> ServerProcess:
    """The stand-in, served."""
    return stand_in_server


def told(server: ServerProcess) -> dict[str, float]:
    """Return the metrics of an idle server, by name and the label that distinguishes them."""
    wait_idle(server)
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            rest = [value for name, value in sample.labels.items() if name != "model_name"]
            found[" ".join([sample.name, *rest])] = sample.value
    return found


def test_requests_are_counted_by_how_they_ended_for_their_clients(server: ServerProcess) -> None:
    before = told(server)
    server.generate("Once", n=2, max_new_tokens=8, ignore_eos=True)
    reply = server.generate("Then", stop=list("aeiou "), max_new_tokens=300, temperature=1.0)
    with contextlib.closing(server.stream("Left", max_new_tokens=4000, ignore_eos=True)) as left:  # pyright: ignore[reportArgumentType]
        next(left)
    after = told(server)

    assert reply["meta_info"]["finish_reason"]["type"] == "stop"
    assert isinstance(reply["meta_info"]["finish_reason"]["matched"], str)
    moved = {name: after[name] - before.get(name, 0.0) for name in after}
    assert moved["sglang:num_requests_total"] == 4
    assert moved["umbra:finished_requests_total"] == 3
    assert moved["sglang:num_aborted_requests_total"] == 1
    assert moved["umbra:choices_finished_total length"] == 2
    assert moved["umbra:choices_finished_total stop"] == 1
    assert moved["umbra:choices_finished_total abort"] == 1


def test_stages_add_up_to_what_the_client_waited(server: ServerProcess) -> None:
    before = told(server)
    reply = server.generate("How long is this?", max_new_tokens=20, ignore_eos=True)
    after = told(server)

    moved = {name: after[name] - before.get(name, 0.0) for name in after}
    stages = ("tokenize", "prefill_waiting", "prefill_forward", "decode_forward")
    parts = [moved[f"sglang:per_stage_req_latency_seconds_sum {stage}"] for stage in stages]
    whole = moved["sglang:e2e_request_latency_seconds_sum"]
    assert all(part > 0 for part in parts)
    assert sum(parts) <= whole
    assert moved["sglang:queue_time_seconds_sum"] == pytest.approx(parts[1])
    mean = moved["sglang:request_time_per_output_token_seconds_sum"]
    assert mean == pytest.approx(parts[3] / 19)
    assert reply["meta_info"]["completion_tokens"] == 20
