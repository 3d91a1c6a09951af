"""Host step plan -> device `ForwardBatch`. All copies of plan arrays to the device live here."""

import numpy as np
import torch

from layers.forward_batch import ForwardBatch
from runtime.executor.step_plan import StepPlan


def build_batch(plan: StepPlan, device: torch.device) -> ForwardBatch:
    """Return the tensors of a step on `device`.

    The logits asked for are those of each sampled row's last token, in the order of
    `plan.sampled`, and after them those of each prompt span, in its order.
    """

    def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=dtype)

    return ForwardBatch(
        input_ids=tensor(plan.input_ids, torch.int64),
        chunk_start=tensor(plan.chunk_start, torch.int64),
        chunk_len=tensor(plan.chunk_len, torch.int64),
        page_table=tensor(plan.page_table, torch.int32),
        window=tensor(plan.window, torch.int32),
        ring=tensor(plan.ring, torch.int32),
        window_from=tensor(plan.window_from, torch.int64),
        write_from=tensor(plan.write_from, torch.int64),
        save_row=tensor(plan.save_row, torch.int64),
        save_position=tensor(plan.save_position, torch.int64),
        save_ring=tensor(plan.save_ring, torch.int32),
        save_window=tensor(plan.save_window, torch.int32),
        logit_tokens=tensor(_logit_tokens(plan), torch.int64),
    )


def _logit_tokens(plan: StepPlan) -> np.ndarray:
    ends = np.cumsum(plan.chunk_len)
    parts = [ends[plan.sampled] - 1]
    for span in plan.prompt_logprobs:
        first = ends[span.row] - plan.chunk_len[span.row] - plan.chunk_start[span.row]
        parts.append(np.arange(span.start, span.stop) + first)
    return np.concatenate(parts)
