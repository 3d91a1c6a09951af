"""Straight-through rounding: the numbers of the files and the pools, the gradient of neither."""

import torch

from jit_kernels.indexer_keys import decode_keys, encode_keys, hadamard
from jit_kernels.kv_records import decode_records, encode_records
from layers.weights.quant import dequantise_fp8, quantise_fp8
from tests.train.fake_quant import (
    round_index_keys,
    round_index_queries,
    round_records,
    working_weights,
)


def test_records_are_the_packed_ones_and_their_gradient_passes() -> None:
    kv = torch.randn(5, 192, requires_grad=True)

    rounded = round_records(kv, 64)
    rounded.backward(torch.full_like(kv, 2.0))

    rows = encode_records(kv.detach(), record_format="fp8", rope_channels=64)
    want = decode_records(rows, record_format="fp8", channels=192, rope_channels=64)
    assert torch.equal(rounded, want)
    assert not torch.equal(rounded, kv)
    assert kv.grad is not None
    assert bool((kv.grad == 2.0).all())


def test_indexer_keys_and_queries_are_rounded_after_the_transform() -> None:
    keys, q = torch.randn(5, 32), torch.randn(5, 3, 32)

    rows = encode_keys(hadamard(keys), record_format="fp8")
    assert torch.equal(round_index_keys(keys), decode_keys(rows, record_format="fp8"))
    rounded = round_index_queries(q)
    assert not torch.equal(rounded, hadamard(q))
    torch.testing.assert_close(rounded, hadamard(q), rtol=0.07, atol=1e-2)


def test_working_weights_are_those_of_the_file_in_the_dtypes_of_the_server() -> None:
    names = {
        "layers.0.attn.wq_a.weight": (256, 140),
        "layers.0.attn.wkv.weight": (128, 140),
        "layers.0.ffn.experts.0.w1.weight": (130, 140),
        "layers.0.attn.compressor.wkv.weight": (8, 140),
        "layers.0.hc_attn_fn": (24, 140),
        "embed.weight": (9, 140),
    }
    parameters = {name: torch.randn(shape, requires_grad=True) for name, shape in names.items()}

    working = working_weights(parameters, torch.bfloat16, rounded=True)
    torch.stack([tensor.float().sum() for tensor in working.values()]).sum().backward()

    for name, tensor in parameters.items():
        stored = tensor.detach()
        if "w" in name.split(".")[-2] and "compressor" not in name:
            out = torch.empty_like(stored)
            dequantise_fp8(*quantise_fp8(stored), out)
            stored = out
        elif not name.endswith("_fn"):
            stored = stored.to(torch.bfloat16).to(torch.float32)
        assert torch.equal(working[name].float(), stored), name
        assert tensor.grad is not None
        assert bool((tensor.grad == 1.0).all()), name
    assert working["embed.weight"].dtype == torch.bfloat16
    assert working["layers.0.attn.compressor.wkv.weight"].dtype == torch.float32
    assert working["layers.0.hc_attn_fn"].dtype == torch.float32
