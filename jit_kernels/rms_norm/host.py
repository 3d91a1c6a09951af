"""Root-mean-square normalisation in C."""

import torch

from jit_kernels.host import by_rows, function, rows_of

_rms_norm = function("rms_norm", "pipfpii")


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Normalise the last axis; see `jit_kernels.rms_norm.rms_norm`."""
    width = x.shape[-1]
    rows = rows_of(x if x.ndim == 2 else x.reshape(-1, width))
    out = torch.empty(x.shape, dtype=torch.float32)
    x_at, stride, out_at = rows.data_ptr(), rows.stride(0), out.data_ptr()
    weight_at = None if weight is None else weight.data_ptr()

    def norm(first: int, last: int) -> None:
        shifted = (x_at + 4 * first * stride, stride, weight_at, eps, out_at + 4 * first * width)
        _rms_norm(*shifted, last - first, width)

    by_rows(norm, rows.shape[0])
    return out if out_dtype is torch.float32 else out.to(out_dtype)
