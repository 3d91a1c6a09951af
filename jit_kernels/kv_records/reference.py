"""KV records in plain torch."""

import torch

BLOCK = 64
E4M3_MAX = 448.0
AMAX_FLOOR = 1e-4
RECORD_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def encode_records(kv: torch.Tensor, record_format: str, rope_channels: int) -> torch.Tensor:
    """Return record bytes; see `jit_kernels.kv_records.encode_records`."""
    if record_format != "fp8":
        return kv.to(RECORD_DTYPES[record_format]).contiguous().view(torch.uint8)
    plain = kv.shape[1] - rope_channels
    blocks = kv[:, :plain].to(torch.float32).unflatten(1, (plain // BLOCK, BLOCK))
    codes, exponents = quantise_e4m3(blocks)
    rotated = kv[:, plain:].to(torch.bfloat16).contiguous().view(torch.uint8)
    pad = kv.new_zeros((kv.shape[0], -exponents.shape[1] % 8), dtype=torch.uint8)
    data = codes.flatten(1).view(torch.uint8)
    return torch.cat((data, rotated, exponents.to(torch.uint8), pad), 1)


def decode_records(
    rows: torch.Tensor, record_format: str, channels: int, rope_channels: int
) -> torch.Tensor:
    """Return record numbers; see `jit_kernels.kv_records.decode_records`."""
    if record_format != "fp8":
        return rows.view(RECORD_DTYPES[record_format]).to(torch.float32)
    plain = channels - rope_channels
    data = plain + 2 * rope_channels
    codes = rows[:, :plain].view(torch.float8_e4m3fn).to(torch.float32)
    scales = power_of_two(rows[:, data : data + plain // BLOCK].to(torch.int32))
    values = codes.unflatten(1, (plain // BLOCK, BLOCK)) * scales.unsqueeze(2)
    rotated = rows[:, plain:data].view(torch.bfloat16).to(torch.float32)
    return torch.cat((values.flatten(1), rotated), 1)


def quantise_e4m3(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise along the last axis with one power-of-two scale: 2^ceil(log2(amax / 448)).

    Returns (codes float8_e4m3fn of the shape of `x`, biased exponents int32, last axis gone).
    """
    ratio = x.abs().amax(-1).clamp(min=AMAX_FLOOR) / E4M3_MAX
    # Adding just under one to the exponent field rounds any mantissa but zero up.
    exponents = (ratio.view(torch.int32) + 0x7FFFFF) >> 23
    scaled = x * power_of_two(254 - exponents).unsqueeze(-1)
    return scaled.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), exponents


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2^(e - 127) in float32 for biased exponents, int32 in 1..254."""
    return (exponents << 23).view(torch.float32)
