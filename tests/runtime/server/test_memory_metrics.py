"""What memory of ranks holds is told by rank and by use."""

from prometheus_client import CollectorRegistry

from runtime.rank_memory import RankMemory
from runtime.server.memory_metrics import RankMemoryCollector


def test_each_rank_has_its_own_values() -> None:
    memory = [RankMemory(0, 1, 2, 3, 4, 100, 90), RankMemory(1, 5, 6, 7, 8, 100, 74)]
    registry = CollectorRegistry()
    registry.register(RankMemoryCollector("m", memory))

    def told(name: str, rank: int, **more: str) -> float | None:
        labels = {"model_name": "m", "rank": str(rank), **more}
        return registry.get_sample_value(f"umbra:rank_memory_{name}", labels)

    parts = ("weights", "pools", "activations", "graphs")
    assert [told("bytes", 0, part=part) for part in parts] == [1, 2, 3, 4]
    assert [told("bytes", 1, part=part) for part in parts] == [5, 6, 7, 8]
    assert [told("total_bytes", rank) for rank in (0, 1)] == [100, 100]
    assert [told("free_bytes", rank) for rank in (0, 1)] == [90, 74]
