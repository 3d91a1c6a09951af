"""Pages of latent records and indexer keys."""

import pytest
import torch

from layers.models.mla.sparse_pools import SparsePage, SparsePools
from mem_cache.spec import PoolSizes
from tests.testing.compare import Bounds, assert_close, assert_same_bits

CPU = torch.device("cpu")


def pools(record_format: str) -> SparsePools:
    """Return five pages of two layers, of the published widths, that hold nothing."""
    made = SparsePools(2, SparsePage(256, 576, 64, 128, record_format), PoolSizes(4, 0, 0), CPU)
    for tensor in made.tensors().values():
        tensor.fill_(255)
    return made


def test_packed_pages_have_the_published_layouts() -> None:
    made = pools("fp8")

    assert made.records.shape == (2, 5, 256, 656)
    # FlashMLA and DeepGEMM take pages of 64 positions.
    assert made.records[0].view(-1, 64, 1, 656).stride(1) == 656
    assert made.keys.shape == (2, 5, 4, 8448)
    assert made.bytes == 2 * 5 * made.page.bytes == 2 * 5 * 256 * (656 + 132)
    keys = torch.randn(256, 128)
    made.store_keys(1, 2 * 256 + torch.arange(256), keys)
    page = made.keys[1, 2, 3]
    assert_same_bits(
        page[: 64 * 128].view(torch.float8_e4m3fn).float().view(64, 128)
        * page[64 * 128 :].view(torch.float32).unsqueeze(1),
        made.read_keys(1, 2 * 256 + torch.arange(192, 256)),
    )


@pytest.mark.parametrize(("record_format", "rtol"), [("fp32", 0.0), ("bf16", 2**-8), ("fp8", 0.07)])
def test_what_is_read_is_what_was_written_and_pages_are_copied_whole(
    record_format: str, rtol: float
) -> None:
    made = pools(record_format)
    slots = 256 + torch.randperm(512)[:200]
    records, keys = torch.randn(200, 576), torch.randn(200, 128)

    made.store_records(1, slots, records)
    made.store_keys(1, slots, keys)

    read, wanted = made.read_records(1, slots), made.read_keys(1, slots)
    assert_close(read, records, Bounds(rtol=rtol, atol=1e-3 if rtol else 0.0))
    assert_close(wanted, keys, Bounds(rtol=rtol, atol=1e-2 if rtol else 0.0))
    made.copy_full_pages([(1, 3), (2, 4)])
    assert_same_bits(made.read_records(1, slots + 512), read)
    assert_same_bits(made.read_keys(1, slots + 512), wanted)
    assert bool(made.read_records(0, slots).isnan().all())
