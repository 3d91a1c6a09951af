"""Gauges of what the memory of each rank's device holds."""

from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.rank_memory import RankMemory

__all__ = ["RankMemoryCollector"]


class RankMemoryCollector(Collector):
    """Exposes bytes as they were once the server was ready."""

    def __init__(self, model_name: str, memory: Sequence[RankMemory]) -> None:
        self._model_name = model_name
        self._memory = memory

    def collect(self) -> Iterable[Metric]:
        """Yield what is taken by part, what there is, and what was free."""
        parts = self._family("rank_memory_bytes", "Bytes of a rank's device, by use", "part")
        total = self._family("rank_memory_total_bytes", "Bytes that a rank's device has")
        free = self._family("rank_memory_free_bytes", "Bytes free once the server was ready")
        for of_rank in self._memory:
            labels = [self._model_name, str(of_rank.rank)]
            for part, size in _parts(of_rank).items():
                parts.add_metric([*labels, part], size)
            total.add_metric(labels, of_rank.total_bytes)
            free.add_metric(labels, of_rank.free_bytes)
        return parts, total, free

    def _family(self, name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"umbra:{name}", text, labels=["model_name", "rank", *more])


def _parts(memory: RankMemory) -> dict[str, int]:
    return {
        "weights": memory.weight_bytes,
        "pools": memory.pool_bytes,
        "activations": memory.activation_bytes,
        "graphs": memory.graph_bytes,
    }
