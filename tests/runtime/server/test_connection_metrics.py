"""Connections that are closed for others, or because nobody reads, are counted."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from runtime.server.connection_metrics import ConnectionCollector
from runtime.server.open_connections import OpenConnections
from runtime.server.unread_replies import UnreadReplies


class Connection:
    def abandon(self) -> bool:
        return True

    def unread_bytes(self) -> int:
        return 70

    def give_up(self) -> None:
        pass


def test_each_kind_of_end_has_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.server.unread_replies.STALL_S", 0.0)
    monkeypatch.setattr("runtime.server.unread_replies._LOOK_S", 0.01)
    registry = CollectorRegistry()

    def told(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"umbra:{name}", {"model_name": "m", **more})

    async def scenario() -> None:
        connections, unread = OpenConnections(1), UnreadReplies(trim=lambda: None)
        registry.register(ConnectionCollector("m", connections, unread))
        for _ in range(3):
            connections.add(Connection())
        unread.add(Connection())
        assert told("unread_reply_bytes") == 70
        while not unread.ended:
            await asyncio.sleep(0.01)

    asyncio.run(scenario())

    assert told("connections_open") == 1
    assert told("connections_closed_total", reason="idle") == 2
    assert told("connections_closed_total", reason="unread") == 1
    assert told("unread_reply_bytes") == 0
