"""Triton kernels launched with less work on the host: what was compiled is found by a short key.

Triton looks up environment variables, hooks and globals at every launch, and makes texts of the
options. All of that is as it was when the same kernel ran with alike arguments before, so here a
launch is the specialisation of the arguments, one look into a dictionary, and Triton's launcher.
"""

import functools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import triton  # pyright: ignore[reportMissingTypeStubs]
from triton.runtime.jit import JITFunction  # pyright: ignore[reportMissingTypeStubs]

from jit_kernels.cuda_device import current_device, raw_stream

__all__ = ["PreparedKernel", "prepared"]

# What a launch touches inside of Triton was read in these versions; others launch by themselves.
_KNOWN = ("3.6.", "3.7.", "3.8.")

logger = logging.getLogger("umbra.kernels")


def prepared(kernel: Any) -> Any:
    """Return `kernel`, to be launched as before, `kernel[grid](...)`, at a lower price.

    kernel  what `triton.jit` returns. One that other kernels call must not be prepared: they want
            the function itself. Under Triton's interpreter, and in versions of Triton whose inside
            is not known here, it is returned as it is

    A launch takes no callable grid, no hooks, and does not ask whether globals have changed.
    """
    if not isinstance(kernel, JITFunction):
        return kernel
    if not triton.__version__.startswith(_KNOWN):
        _tell_unknown()
        return kernel
    return PreparedKernel(kernel)


@functools.cache
def _tell_unknown() -> None:
    logger.info("Triton %s launches kernels by itself, at a higher price", triton.__version__)


class PreparedKernel:
    """A kernel and what it was compiled to, by device and by kind of its arguments."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[tuple[object, ...], Any] = {}
        self._binders: dict[int, Callable[..., Any]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Return what launches so many programs."""
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        device = current_device()
        binder = self._binders.get(device)
        if binder is None:
            # Caches, target, backend, and what binds and specialises arguments.
            binder = self._binders[device] = self.kernel.device_caches[device][-1]
        bound, kinds, options = binder(*args, **kwargs)
        key = (device, *kinds, *options.items())
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self.kernel.run(*args, grid=grid, warmup=False, **kwargs)
            self._compiled[key] = compiled
            return
        across, down, deep = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        compiled.run(
            *(across, down, deep, raw_stream(device)),
            *(compiled.function, compiled.packed_metadata, None, None, None),
            *bound.values(),
        )
