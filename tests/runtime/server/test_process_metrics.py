"""What processes take is told by their names."""

import os
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.server.metrics import Metrics
from runtime.server.process_metrics import ProcessCollector


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_each_process_is_told_and_one_that_is_gone_left_out() -> None:
    metrics = Metrics("m")
    metrics.add(ProcessCollector("m", {"api": os.getpid, "scheduler": lambda: 1 << 22}))

    found = {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(metrics.render(None).decode())
        for sample in family.samples
        if sample.name.startswith("umbra:process")
    }

    assert found.keys() == {
        "umbra:process_resident_memory_bytes",
        "umbra:process_cpu_seconds_total",
        "umbra:process_open_fds",
    }
    for labels, value in found.values():
        assert labels == {"model_name": "m", "process": "api"}
        assert value > 0
