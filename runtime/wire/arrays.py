"""Arrays as the bytes of messages: little-endian, and back without a copy."""

import numpy as np

__all__ = ["FLOAT32", "INT32", "INT64", "UINT8", "column", "packed", "unpacked"]

INT32 = np.dtype("<i4")
INT64 = np.dtype("<i8")
UINT8 = np.dtype("u1")
FLOAT32 = np.dtype("<f4")


def packed(values: object, dtype: np.dtype) -> bytes:
    """Return an array, or what one can be made of, as bytes."""
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def unpacked(data: bytes, dtype: np.dtype, *shape: int) -> np.ndarray:
    """Return the array behind `data`, read-only. Raises ValueError for another size."""
    array = np.frombuffer(data, dtype=dtype)
    return array.reshape(shape) if shape else array


def column(data: bytes, dtype: np.dtype, count: int) -> np.ndarray:
    """Return the array [count] behind `data`; zeros where there is none."""
    if not data:
        return np.zeros(count, dtype=dtype)
    return unpacked(data, dtype, count)
