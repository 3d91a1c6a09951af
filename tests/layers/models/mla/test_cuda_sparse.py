"""V3.2 in bfloat16 over packed pages, on a GPU if there is one: the reference's, and its own bits.

Without a GPU the references of its ops run, which shows that it is wired right.
"""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from layers.models.contract import Settings
from layers.models.mla.config import MlaConfig, parse_config
from layers.models.mla.model import CudaSparseMla, PlainSparseMla
from layers.models.plain_model import Numbers
from layers.parallel.ranks import OneRank, Ranks
from layers.weights.loading import fill_dummy
from tests.testing.compare import Bounds, assert_close
from tests.testing.cuda_decoders import (
    copy_weights,
    logits_of,
    words,
)
from tests.testing.gqa_checkpoints import VOCAB
from tests.testing.mla_checkpoints import write_published
from tests.testing.page_rig import PagedRow, PageRig

CPU = torch.device("cpu")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else CPU
# Records as published, one dense layer and one of experts; far fewer positions than rows have.
SIZES = {
    **{"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "v_head_dim": 32},
    **{"moe_intermediate_size": 64, "n_routed_experts": 32, "q_lora_rank": 64},
    **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_topk": 64},
}
# Weights are the same on both sides, and so is the form of what is cached. Products round to
# bfloat16 here; a number that falls to another code, or a position that another one takes the
# place of, moves single tokens further.
BOUNDS = Bounds(cosine=0.995, rms=0.1, atol=torch.inf)
SEED = 3

Made = CudaSparseMla | PlainSparseMla


@cache
def config(**changes: Any) -> MlaConfig:
    """Return a configuration."""
    with TemporaryDirectory() as folder:
        text = (write_published("v32", Path(folder)) / "config.json").read_text("utf-8")
    return parse_config(json.loads(text), {}, {**SIZES, **changes})


def built(
    kind: type[Made], device: torch.device, ranks: Ranks, *, deterministic: bool, **changes: Any
) -> Made:
    """Return a network with random weights."""
    settings = Settings(dtype="bfloat16", kv_cache_dtype="fp8", deterministic=deterministic)
    numbers = Numbers(device, settings, "v32", ("fp8",), on_cuda="fp8")
    made = kind(config(**changes), numbers, ranks)
    if device.type == "cpu":
        fill_dummy(made, SEED)
    else:
        copy_weights(plain(**changes), made)
    return made


@cache
def plain(**changes: Any) -> Made:
    """Return the network in plain numbers over packed records; made once."""
    return built(PlainSparseMla, CPU, OneRank(), deterministic=True, **changes)


@cache
def network(*, deterministic: bool = True, **changes: Any) -> CudaSparseMla:
    """Return the network; made once."""
    made = built(CudaSparseMla, DEVICE, OneRank(), deterministic=deterministic, **changes)
    assert isinstance(made, CudaSparseMla)
    return made


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("interleaved", [False, True])
def test_logits_are_those_of_plain_numbers_over_packed_records(
    interleaved: bool, deterministic: bool
) -> None:
    change = {"indexer_rope_interleave": True} if interleaved else {}
    prompt = words(301, VOCAB)
    rig = PageRig(plain(**change))
    want = [rig.prefill(PagedRow(prompt[:stop]), 2048) for stop in (299, 300, 301)]

    made = network(deterministic=deterministic, **change)
    got = logits_of(made, prompt, prompt[100:120], DEVICE)

    for one, other_one in zip(got, want, strict=True):
        print(
            float((one.cpu() - other_one).norm() / other_one.norm()),
            float(torch.cosine_similarity(one.cpu(), other_one, 0)),
        )
        assert_close(one, other_one, BOUNDS)
