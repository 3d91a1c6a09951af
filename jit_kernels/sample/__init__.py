"""Draw one token per row: temperature, top-k, top-p and min-p, then a race of the tokens left."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.host import on_host
from jit_kernels.registry import Backend, select

__all__ = ["MAX_VOCAB", "DrawParams", "sample", "sample_unread"]

MAX_VOCAB = 2**18

_sample: Callable[..., torch.Tensor] = select(
    "sample",
    [
        on_host("sample.host:sample"),
        Backend("reference", "jit_kernels.sample.reference:sample"),
    ],
)
_sample_unread: Callable[..., torch.Tensor] = select(
    "sample_unread",
    [
        Backend("cuda", "jit_kernels.sample.cuda_backend:sample_unread", why_no_hopper, "cuda"),
        Backend("reference", "jit_kernels.sample.reference:sample_unread"),
    ],
)


@dataclass(frozen=True, slots=True)
class DrawParams:
    """Parameters of n rows where their logits are; they serve as long as the rows stay the same.

    temperature, top_k, top_p, min_p   [n] as `sample` takes them, but on the device
    draws    whether any row has a temperature above 0
    filters  whether any of those has a filter
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    draws: bool
    filters: bool


def sample(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """Draw one token id from each row of `logits`.

    logits       [n, V] float32, V at most 2^18; not changed
    temperature  [n] float32   0 takes the largest logit, ties to the lower id
    top_k        [n] int64     tokens kept; V keeps all
    top_p        [n] float32   tokens are kept until their mass passes it; 1 keeps all
    min_p        [n] float32   least probability kept, relative to the largest one; 0 keeps all
    seed         [n] int64     any value
    position     [n] int64     position the drawn token will have

    The parameters are CPU tensors, wherever the logits are: the work that a batch needs is
    chosen from them without waiting for the device. Returns [n] int64 on the logits' device.

    Probabilities are softmax(logits / temperature). The filters apply together, each to these
    probabilities and not to what another left over: a token is kept if fewer than top_k tokens
    come before it (larger logit first, ties to the lower id), if the mass of those before it is
    at most top_p, and if it has at least min_p times the largest probability. The first token
    is always kept.

    The draw is an exponential race: of the tokens kept, the one with the least exponential noise
    / probability wins. It is run as the largest logit / temperature + Gumbel noise, ties to the
    lower id. A token's noise is a function of (seed, position, token id) alone (`noise.py`), so
    the winner of a vocabulary is the winner of the winners of its parts. Given what is kept, the
    token is the same on every device, in bits.

    A row's token depends on nothing but that row: not on the others, its place, or how many
    there are. A row with a NaN or infinite maximum gets some id in [0, V).
    Source: the filters are those of SGLang's sampler without kernels, and of FlashInfer's
    filter order "joint". The race: Maddison, Tarlow, Minka, "A* sampling", 2014.
    Raises ShapeError before any launch.
    """
    check_shape("logits", logits, None, None)
    check_dtype("logits", logits, torch.float32)
    rows, vocab = logits.shape
    if not 1 <= vocab <= MAX_VOCAB:
        raise ShapeError(f"logits have {vocab} columns, expected 1 to {MAX_VOCAB}")
    for name, parameter, dtype in (
        ("temperature", temperature, torch.float32),
        ("top_k", top_k, torch.int64),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
        ("seed", seed, torch.int64),
        ("position", position, torch.int64),
    ):
        check_shape(name, parameter, rows)
        check_dtype(name, parameter, dtype)
        if parameter.device.type != "cpu":
            raise ShapeError(f"{name} is on {parameter.device}, expected the CPU")
    return _sample(
        logits,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        position=position,
    )


def sample_unread(
    logits: torch.Tensor, params: DrawParams, keys: torch.Tensor | None
) -> torch.Tensor:
    """Draw the token that `sample` draws, without reading anything back: all of it is launches.

    logits  [n, V] float32, V at most 2^18; not changed
    keys    [n] int64 on the device: `noise.row_keys(seed, position)`; None where no row draws

    Returns [n] int64, equal to what `sample` returns. Memory: none on a GPU; the reference, which
    sorts the vocabulary where a row has a filter, takes 64 bytes for each logit of at most 2^22.
    Raises ShapeError before any launch.
    """
    check_shape("logits", logits, None, None)
    check_dtype("logits", logits, torch.float32)
    rows, vocab = logits.shape
    if not 1 <= vocab <= MAX_VOCAB:
        raise ShapeError(f"logits have {vocab} columns, expected 1 to {MAX_VOCAB}")
    parts = {"temperature": params.temperature, "top_k": params.top_k}
    for name, part in (parts | {"top_p": params.top_p, "min_p": params.min_p}).items():
        check_shape(name, part, rows)
    if params.draws:
        if keys is None:
            raise ShapeError("rows draw, and there are no keys")
        check_shape("keys", keys, rows)
        check_dtype("keys", keys, torch.int64)
    return _sample_unread(logits, params, keys)
