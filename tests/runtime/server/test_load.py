"""The load that routers balance by."""

from runtime.messages import ReplicaState, State
from runtime.server.load import server_loads
from runtime.server.metrics import Metrics
from tests.runtime.server.engine import Server, served


@served()
async def test_a_load_has_the_names_that_routers_read(server: Server) -> None:
    gauges = {
        "running": 16.0, "waiting": 2.0, "used_tokens": 512.0, "full_pages": 10.0,
        "page_size": 256.0, "full_usage": 0.2, "swa_usage": 0.5, "ring_usage": 0.25,
        "waiting_uncached_tokens": 700.0,
    }  # fmt: skip

    [load] = server_loads(server.app.state.service, State(0, {}, gauges))

    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (16, 2)
    assert (load["num_used_tokens"], load["max_total_num_tokens"]) == (512, 2560)
    assert load["token_usage"] == 0.5
    assert load["num_waiting_uncached_tokens"] == 700


@served()
async def test_utilization_is_that_of_the_metrics(server: Server) -> None:
    service = server.app.state.service
    rows = float(service.manager.rows)
    for running, usage in ((rows / 2, 0.25), (rows / 4, 0.75)):
        gauges = {
            "running": running, "rows": rows, "full_usage": usage, "full_pages": 4.0,
            "full_pages_free": 1.0, "page_size": 256.0, "swa_pages": 4.0, "swa_pages_free": 1.0,
        }  # fmt: skip
        state = State(0, {}, gauges)

        [load] = server_loads(service, state)

        assert load["utilization"] == max(0.5, usage)
        told = Metrics("m").render(state).decode()
        assert f'sglang:utilization{{model_name="m"}} {load["utilization"]}' in told


@served()
async def test_replicas_have_loads_of_their_own(server: Server) -> None:
    parts = [
        ReplicaState({}, {"running": running, "rows": 4.0, "used_tokens": 512.0 * running})
        for running in (1.0, 3.0)
    ]

    loads = server_loads(server.app.state.service, State(0, {}, {}, replicas=parts))

    assert [load["dp_rank"] for load in loads] == [0, 1]
    assert [load["num_running_reqs"] for load in loads] == [1, 3]
    assert [load["num_used_tokens"] for load in loads] == [512, 1536]
    assert [load["utilization"] for load in loads] == [0.25, 0.75]


@served()
async def test_without_a_state_nothing_runs(server: Server) -> None:
    [load] = server_loads(server.app.state.service, None)

    assert load["num_total_reqs"] == load["token_usage"] == 0
