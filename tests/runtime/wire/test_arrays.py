"""Arrays to bytes and back."""

import numpy as np
import pytest

from runtime.wire.arrays import FLOAT32, INT32, INT64, UINT8, column, packed, unpacked


@pytest.mark.parametrize("dtype", [INT32, INT64, UINT8, FLOAT32])
def test_arrays_come_back_read_only(dtype: np.dtype) -> None:
    array = np.arange(12).reshape(4, 3).astype(dtype)
    data = packed(array, dtype)
    back = unpacked(data, dtype, 4, 3)

    assert len(data) == 12 * dtype.itemsize
    assert back.dtype == dtype
    assert np.array_equal(back, array)
    assert not back.flags.writeable
    assert np.array_equal(unpacked(data, dtype), array.reshape(-1))


def test_bytes_are_little_endian_and_in_the_order_of_the_rows() -> None:
    assert packed([1, -1], INT32) == b"\x01\0\0\0\xff\xff\xff\xff"
    assert packed(np.array([[1, 2], [3, 4]]).T, UINT8) == b"\x01\x03\x02\x04"
    assert packed(np.array([258], dtype=">i8"), INT64) == b"\x02\x01" + bytes(6)


def test_another_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="reshape"):
        unpacked(bytes(8), INT32, 3)
    with pytest.raises(ValueError, match="buffer size"):
        unpacked(bytes(7), INT32)
    with pytest.raises(ValueError, match="reshape"):
        column(bytes(8), INT32, 3)


def test_a_column_that_is_left_out_is_zeros() -> None:
    assert (column(b"", INT64, 3) == np.zeros(3)).all()
    assert [column(b"", dtype, 1).dtype for dtype in (INT64, UINT8)] == [INT64, UINT8]
    assert column(packed([5, 6], INT64), INT64, 2).tolist() == [5, 6]
