"""Python's garbage collector, set for a process that serves for long."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Collections of young objects are cheap and find little: a step makes few cycles.
THRESHOLDS = (20_000, 20, 50)
# asyncio leaves a cycle of each connection that ended, which grows old before it does. Of a process
# with connections a full collection in time for some thousand of them; it has few objects to walk.
WITH_CONNECTIONS = (20_000, 20, 5)


def calm_collector(thresholds: tuple[int, int, int] = THRESHOLDS) -> None:
    """Take what lives now, imports and weights above all, out of all later collections.

    A full collection walks every object there is: with torch imported, some 90 ms in which no
    token is sampled. Call it once, when everything is loaded.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Collect nothing in this block: for imports, which make many objects and little garbage.

    With torch among them a sixth of the time would go into looking through it again and again.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
