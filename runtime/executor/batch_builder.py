"""Host step plan -> `ForwardBatch` in host memory."""

import numpy as np
import torch

from layers.forward_batch import ForwardBatch
from runtime.executor.step_plan import StepPlan

_INT64 = (
    *("input_ids", "chunk_start", "chunk_len", "window_from", "write_from"),
    *("save_row", "save_position"),
)
_INT32 = ("page_table", "window", "ring", "save_ring", "save_window")


def build_batch(plan: StepPlan) -> ForwardBatch:
    """Return the tensors of a step; they share no memory with the plan.

    The logits asked for are those of each sampled row's last token, in the order of
    `plan.sampled`, and after them those of each prompt span, in its order.
    """
    arrays = {name: np.array(getattr(plan, name), dtype=np.int64) for name in _INT64}
    arrays |= {name: np.array(getattr(plan, name), dtype=np.int32) for name in _INT32}
    arrays["logit_tokens"] = _logit_tokens(plan)
    return ForwardBatch(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def _logit_tokens(plan: StepPlan) -> np.ndarray:
    ends = np.cumsum(plan.chunk_len)
    parts = [ends[plan.sampled] - 1]
    for span in plan.prompt_logprobs:
        first = ends[span.row] - plan.chunk_len[span.row] - plan.chunk_start[span.row]
        parts.append(np.arange(span.start, span.stop) + first)
    return np.concatenate(parts).astype(np.int64)
