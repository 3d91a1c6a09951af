"""Regions: chains of small operations that one compiled kernel can replace."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_MOST_SHAPES = 64


class Regions:
    """Runs pure functions on tensors as they are, or compiled by torch.

    A region is given all it needs as arguments. Compiled, it is made again for every new shape,
    unless it is called for with `any_length`.
    """

    def __init__(self, *, compiled: bool = False) -> None:
        """Compile regions on first use, or do not."""
        self._compiled = compiled
        if compiled:
            # A region meets each shape of each phase, and fails rather than run uncompiled.
            torch._dynamo.config.recompile_limit = _MOST_SHAPES
        self._known: dict[object, object] = {}

    def __call__(self, region: Callable[P, R], *, any_length: bool = False) -> Callable[P, R]:
        """Return `region` in the form that is to run.

        any_length  sizes change from call to call: one kernel for all
        """
        if not self._compiled:
            return region
        known = self._known.get(region)
        if known is None:
            known = torch.compile(region, fullgraph=True, dynamic=any_length)
            self._known[region] = known
        return known  # type: ignore[return-value]
