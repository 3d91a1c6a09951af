"""Metrics of the processes of a server: memory, processor time, open files."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import ProcessCollector as OneProcess
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

__all__ = ["ProcessCollector"]

# Prometheus' own name -> ours; on systems without /proc there are none.
_EXPORTED = {
    "process_resident_memory_bytes": "umbra:process_resident_memory_bytes",
    "process_cpu_seconds": "umbra:process_cpu_seconds",
    "process_open_fds": "umbra:process_open_fds",
}


class ProcessCollector(Collector):
    """Exposes each process under the label `process`; one that is gone is left out.

    pids  ids by the processes' names, asked for at each scrape
    """

    def __init__(self, model_name: str, pids: Mapping[str, Callable[[], int]]) -> None:
        self._model_name = model_name
        self._processes = {name: OneProcess(pid=pid, registry=None) for name, pid in pids.items()}

    def collect(self) -> Iterable[Metric]:
        """Yield one family for each value, with a sample for each process."""
        families: dict[str, Metric] = {}
        for process, collector in self._processes.items():
            labels = {"model_name": self._model_name, "process": process}
            for found in collector.collect():
                if (name := _EXPORTED.get(found.name)) is None:
                    continue
                family = families.setdefault(name, Metric(name, found.documentation, found.type))
                for sample in found.samples:
                    ending = sample.name.removeprefix(found.name)
                    family.add_sample(name + ending, labels, sample.value)
        return families.values()
