"""Metrics of several replicas; those of one are in test_metrics.py."""

from runtime.messages import ReplicaState, State
from runtime.server.metrics import Metrics
from tests.runtime.server.test_metrics import samples


def test_values_of_replicas_are_told_by_rank() -> None:
    sizes = {"full_pages": 10.0, "full_pages_free": 4.0, "page_size": 256.0}
    parts = [
        ReplicaState({"prompt_tokens": 10.0 * k}, {"running": float(k)} | sizes) for k in (1, 2)
    ]
    state = State(0, {"prompt_tokens": 30.0}, {"running": 3.0} | sizes, replicas=parts)

    text = Metrics("m").render(state)
    told = samples(text)

    assert told["sglang:prompt_tokens_total{dp_rank=0}"] == 10
    assert told["sglang:prompt_tokens_total{dp_rank=1}"] == 20
    assert told["sglang:num_running_reqs{dp_rank=1}"] == 2
    assert told["sglang:kv_available_tokens{dp_rank=0}"] == 1024
    assert "sglang:num_running_reqs" not in told
    # A family is told once, with all its samples.
    assert text.count(b"# TYPE sglang:num_running_reqs gauge") == 1
