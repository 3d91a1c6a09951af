"""A network against itself: in chunks, in company, forked, in ranks, in bfloat16.

`tests/end_to_end/test_gqa_server.py` holds the families against transformers.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from layers.models.contract import Settings
from layers.models.gqa.model import PlainGqa
from layers.models.json_fields import ConfigFault
from layers.models.registry import read_model
from layers.parallel.ranks import OneRank, Ranks
from layers.parallel.shares import UnevenShares
from layers.weights.loading import fill_dummy, load_weights
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.gqa_checkpoints import VOCAB, reference, write, write_config
from tests.testing.mla_checkpoints import write_fp8
from tests.testing.page_rig import PagedRow, PageRig, assert_same_bits_anywhere
from tests.testing.thread_ranks import ThreadRanks, in_ranks

SEED = 3
CPU = torch.device("cpu")


def words(count: int) -> list[int]:
    """Return random token ids."""
    return [random.randrange(2, VOCAB) for _ in range(count)]


def network(folder: Path, **settings: Any) -> PlainGqa:
    """Return the network of a folder with random weights."""
    made = read_model(folder).build(CPU, Settings(**settings))
    assert isinstance(made, PlainGqa)
    fill_dummy(made, SEED)
    return made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_has_the_same_bits_in_any_chunk_company_and_from_the_cache(
    dtype: str, tmp_path: Path
) -> None:
    made = network(write_config("qwen3_moe", tmp_path), dtype=dtype)
    assert_same_bits_anywhere(made, words(600), words(300))


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    folder, prompt = write_config("llama", tmp_path), words(200)

    exact, rounded = (
        PageRig(network(folder, dtype=dtype)).prefill(PagedRow(prompt), 2048).softmax(0)
        for dtype in ("float32", "bfloat16")
    )

    assert float((exact - rounded).abs().sum()) < 0.1
    info = network(folder, dtype="bfloat16")
    assert (info.facts["dtype"], info.facts["record_format"]) == ("bfloat16", "bf16")
    assert info.cache.full_page_bytes * 2 == network(folder).cache.full_page_bytes


def test_ranks_give_what_one_rank_gives(tmp_path: Path) -> None:
    folder, prompt = write_config("qwen3_moe", tmp_path), words(90)
    alone = PageRig(network(folder)).prefill(PagedRow(prompt), 2048)

    def run(ranks: ThreadRanks) -> torch.Tensor:
        made = read_model(folder).build(CPU, Settings(), ranks)
        fill_dummy(made, SEED)
        return PageRig(made).prefill(PagedRow(prompt), 50)

    both = in_ranks(2, run)

    assert_same_bits(both[0], both[1])
    assert_close(both[0], alone, Bounds(atol=1e-4))
    with pytest.raises(UnevenShares, match="6 heads"):
        in_ranks(4, run)


def test_a_published_fp8_checkpoint_gives_what_its_numbers_give(tmp_path: Path) -> None:
    model = reference("qwen3_moe", num_hidden_layers=2, mlp_only_layers=[0], hidden_size=192)
    quantised, plain = write_fp8(model, tmp_path, scale_dtype=torch.bfloat16)
    prompt = words(40)

    def run(folder: Path) -> torch.Tensor:
        made = read_model(folder).build(CPU, Settings())
        load_weights(made, folder, progress=False)
        return PageRig(made).prefill(PagedRow(prompt), 2048)

    assert_same_bits(run(quantised), run(plain))


def test_four_ranks_share_two_heads_of_keys(tmp_path: Path) -> None:
    fields = {"num_attention_heads": 8, "num_hidden_layers": 1, "attention_bias": True}
    folder, prompt = write(reference("qwen3", **fields), tmp_path), words(90)

    def run(ranks: Ranks) -> torch.Tensor:
        made = read_model(folder).build(CPU, Settings(), ranks)
        load_weights(made, folder, progress=False)
        return PageRig(made).prefill(PagedRow(prompt), 50)

    alone, shared = run(OneRank()), in_ranks(4, run)

    for mine in shared:
        assert_same_bits(mine, shared[0])
    assert_close(shared[0], alone, Bounds(atol=1e-4))


def test_what_does_not_suit_it_is_refused(tmp_path: Path) -> None:
    model = read_model(write_config("llama", tmp_path))

    with pytest.raises(ConfigFault, match="kv_cache_dtype fp8 is not for model_type llama"):
        model.build(CPU, Settings(kv_cache_dtype="fp8"))
    with pytest.raises(ConfigFault, match="head_dim is 16"):
        model.build(torch.device("cuda"), Settings())
    with pytest.raises(ConfigFault, match="experts fp4 is not for model_type llama"):
        model.build(CPU, Settings(experts="fp4"))
    with pytest.raises(ConfigFault, match="head_dim is 16, and on a GPU it must be one of 64, 128"):
        model.check_cuda()


def test_ranks_with_rows_of_their_own_are_refused(tmp_path: Path) -> None:
    model = read_model(write_config("llama", tmp_path))

    def run(ranks: ThreadRanks) -> None:
        ranks.shares = replace(ranks.shares, attention="data")
        with pytest.raises(ConfigFault, match="rows of their own are not for model_type llama"):
            model.build(CPU, Settings(), ranks)

    in_ranks(2, run)
