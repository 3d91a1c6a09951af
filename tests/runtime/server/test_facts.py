"""Tests of runtime.server.facts; what `/server_info` says besides is in test_info.py."""

from runtime.config import ServerConfig
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
