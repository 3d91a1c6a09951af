"""Records copied by the device, byte by byte."""

import dataclasses

import pytest

from jit_kernels.copy_records import reference, triton_backend
from jit_kernels.paged_rows import PageLayout
from tests.jit_kernels.kernels.sizes import with_large
from tests.jit_kernels.test_copy_records import some_copy
from tests.testing.compare import assert_same_bits
from tests.testing.packed_pages import BY_2, BY_3, BY_64


@pytest.mark.parametrize("count", with_large([0, 1, 17, 40], [5000]))
@pytest.mark.parametrize(("layout", "other"), [(BY_64, BY_64), (BY_3, BY_2)])
def test_pages_hold_what_the_reference_writes(
    layout: PageLayout, other: PageLayout, count: int
) -> None:
    source, target = some_copy(count, layout, other)
    wanted = dataclasses.replace(target, pages=target.pages.clone())

    triton_backend.copy_records(source.pages, source, target)

    reference.copy_records(source.pages, source, wanted)
    assert_same_bits(target.pages, wanted.pages)
