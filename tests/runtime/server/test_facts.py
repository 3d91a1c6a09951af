"""Tests of runtime.server.facts; what `/server_info` says besides is in test_info.py."""

import pytest

from runtime.config import ServerConfig
from runtime.messages import ReplicaState, State
from runtime.server.facts import server_info
from runtime.server.service import Service
from tests.runtime.server.engine import Server, served

CONFIG = ServerConfig(model_path="/m", served_model_name="tiny", api_key="secret")


@served(CONFIG)
async def test_settings_facts_and_state_are_told_but_not_the_key(server: Server) -> None:
    service: Service = server.app.state.service

    info = await server_info(service)

    assert info["served_model_name"] == "tiny"
    assert info["model_type"] == "m"
    assert info["internal_states"][0]["evicted_pages"] == 2
    assert "secret" not in str(info)


@served(ServerConfig(tp_size=2, dp_size=2, enable_dp_attention=True))
async def test_replicas_have_states_of_their_own(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    service: Service = server.app.state.service
    parts = [ReplicaState({"requests": k}, {"used_tokens": 256 * k}) for k in (1.0, 2.0)]

    async def state() -> State:
        return State(0, {"requests": 3.0}, {"used_tokens": 768.0}, replicas=parts)

    monkeypatch.setattr(service.manager, "state", state)

    info = await server_info(service)

    assert (info["dp_size"], info["enable_dp_attention"]) == (2, True)
    assert [one["used_tokens"] for one in info["internal_states"]] == [256, 512]
