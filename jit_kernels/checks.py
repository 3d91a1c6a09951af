"""Checks of shapes and dtypes at the door of an op, with one wording."""

from torch import Tensor, dtype

__all__ = ["ShapeError", "check_dense", "check_dtype", "check_shape"]


class ShapeError(ValueError):
    """A tensor handed to an op has the wrong shape or dtype."""


def check_shape(name: str, tensor: Tensor, *sizes: int | None) -> None:
    """Raise ShapeError unless `tensor` has these sizes; None stands for any size."""
    got = tensor.shape
    if got == sizes:
        return
    if len(got) == len(sizes):
        for have, want in zip(got, sizes, strict=True):
            if want is not None and have != want:
                break
        else:
            return
    wanted = ", ".join("any" if size is None else str(size) for size in sizes)
    raise ShapeError(f"{name} has shape {list(got)}, expected [{wanted}]")


def check_dtype(name: str, tensor: Tensor, *allowed: dtype) -> None:
    """Raise ShapeError unless the dtype of `tensor` is one of `allowed`."""
    if tensor.dtype not in allowed:
        wanted = " or ".join(str(one) for one in allowed)
        raise ShapeError(f"{name} is {tensor.dtype}, expected {wanted}")


def check_dense(name: str, tensor: Tensor, *allowed: dtype) -> None:
    """Raise ShapeError unless a tensor has one of these dtypes and is contiguous.

    For what kernels are told by its address alone.
    """
    check_dtype(name, tensor, *allowed)
    if not tensor.is_contiguous():
        raise ShapeError(f"{name} is not contiguous")
