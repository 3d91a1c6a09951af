"""Attention of decoding rows that leaves what comes next codes, turned back and rounded."""

from collections.abc import Callable

import torch

from jit_kernels.out_rope_quant import check_heads, in_groups, out_rope_quant
from jit_kernels.paged_attention import PagedKeys, SplitPlan, check_call, paged_attention
from jit_kernels.registry import Backend, chosen, select

__all__ = ["paged_attention_quant"]


def _why_separate() -> str | None:
    """Return why the result would not be that of two calls, None if it is."""
    for op, backend in ((paged_attention, "few_rows"), (out_rope_quant, "cuda")):
        found = chosen("cuda").get(op.__name__)
        if found != backend:
            return f"{op.__name__} is left to {found}"
    return None


_MODULE = "jit_kernels.paged_attention_quant"
_paged_attention_quant: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "paged_attention_quant",
    [
        Backend("few_rows", f"{_MODULE}.few_rows_backend:attend", _why_separate, "cuda"),
        Backend("separate", f"{_MODULE}.separate_backend:attend"),
        Backend("reference", f"{_MODULE}.reference:attend"),
    ],
)


def paged_attention_quant(
    q: torch.Tensor,
    window: PagedKeys,
    extra: PagedKeys | None,
    rotation: torch.Tensor,
    *,
    groups: int,
    sink: torch.Tensor,
    scale: float,
    plan: SplitPlan | None = None,
    deterministic: bool = False,
    settled: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `out_rope_quant(paged_attention(q, window, extra), rotation)`.

    q, window, extra, sink, scale, plan, deterministic  as in `paged_attention`
    rotation, groups                                    as in `out_rope_quant`
    settled  the launch before makes q, and neither keys, nor what names or counts them, nor sinks:
             these may be read before it has ended

    "few_rows" rounds what it adds up where it splits rows; the rest, and "separate" always, are two
    calls, each of its own backend. Raises ShapeError.
    """
    check_call(q, window, extra, sink)
    check_heads(q, rotation, groups)
    plan = plan or SplitPlan()
    found = _paged_attention_quant(
        q, window, extra, rotation, sink, scale, plan, deterministic, settled
    )
    return in_groups(*found, groups)
