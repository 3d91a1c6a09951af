"""The collector leaves alone what was there when it was calmed."""

import gc
import importlib
import subprocess
import sys

import pytest

from runtime.collector import (
    THRESHOLDS,
    WITH_CONNECTIONS,
    calm_collector,
    paused_collector,
)


def test_what_lives_now_is_taken_out_of_later_collections() -> None:
    code = (
        "import gc\n"
        "from runtime.collector import calm_collector\n"
        "calm_collector()\n"
        "print(gc.get_freeze_count() > 1000 > len(gc.get_objects()))\n"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert made.stdout.strip() == "True"


@pytest.mark.parametrize("thresholds", [THRESHOLDS, WITH_CONNECTIONS])
def test_young_objects_are_collected_seldom(thresholds: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    try:
        calm_collector(thresholds)
        assert gc.get_threshold() == thresholds
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_nothing_is_collected_while_modules_are_imported() -> None:
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ModuleNotFoundError), paused_collector():
        importlib.import_module("no_such_module")

    assert gc.isenabled()
