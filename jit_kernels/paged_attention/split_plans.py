"""What calls of attention in one step share."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["KEY_TILE", "SplitPlan"]

KEY_TILE = 64


@dataclass(slots=True, eq=False)
class SplitPlan:
    """How the calls of one step divide the keys among the device's processors.

    Calls of one step whose sets have the same shapes and lengths (the layers of one kind) share a
    plan: the first fills it by a launch of its own, which is then part of a CUDA graph that is
    being captured. So a plan is made inside the capture, and never outlives its step or graph.
    """

    held: dict[str, Any] = field(default_factory=dict[str, Any])
