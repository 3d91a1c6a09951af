"""Bytes and operations of networks of pages, counted by hand; a step on the CPU."""

import pytest
import torch

from layers.models.contract import Settings
from layers.models.gpt_oss.model import CudaGptOss, GptOssModel
from layers.models.gqa.model import CudaGqa, GqaModel
from layers.models.mla.model import CudaMla, CudaSparseMla, MlaModel
from layers.models.plain_model import Numbers
from layers.models.registry import read_model
from layers.parallel.ranks import OneRank
from layers.weights.loading import fill_dummy
from tests.bench.network.page_counts import PageNetwork, prompt_flops, step_bytes
from tests.bench.network.pages import FOLDER, Rows, cut

CPU = torch.device("cpu")


def made(name: str, device: torch.device, cut: str | None = None) -> PageNetwork:
    """Return the network of a published configuration, or of a cut of it."""
    model = read_model(FOLDER.parent / name, cut)
    numbers = Numbers(device, Settings(dtype="bfloat16"), "any")
    if isinstance(model, MlaModel):
        if model.config.index is not None:
            settings = Settings(dtype="bfloat16", kv_cache_dtype="fp8")
            packed = Numbers(device, settings, "any", ("fp8",), on_cuda="fp8")
            return CudaSparseMla(model.config, packed, OneRank())
        return CudaMla(model.config, numbers, OneRank())
    if isinstance(model, GptOssModel):
        return CudaGptOss(model.config, numbers, OneRank())
    assert isinstance(model, GqaModel)
    return CudaGqa(model.config, numbers, OneRank())


@pytest.mark.parametrize(
    ("name", "billions", "kv_bytes", "inner"),
    [
        ("qwen3_8b", 7.57, 147_456, 0),
        ("llama_3_1_8b", 7.50, 131_072, 0),
        ("qwen3_30b_a3b", 1.23, 98_304, 768),
        ("deepseek_v2_lite", 1.10, 31_104, 1408),
    ],
)
def test_a_step_reads_all_weights_but_embeddings_and_experts(
    name: str, billions: float, kv_bytes: int, inner: int
) -> None:
    network = made(name, torch.device("meta"))

    assert step_bytes(network, 0, 0, 0) == pytest.approx(2e9 * billions, rel=5e-3)
    assert step_bytes(network, 3, 100, 0) - step_bytes(network, 0, 0, 0) == 300 * kv_bytes
    experts = step_bytes(network, 0, 0, 5) - step_bytes(network, 0, 0, 0)
    assert experts == 5 * 3 * 2048 * inner * 2


def test_a_row_reads_all_indexer_keys_and_the_records_that_it_attends() -> None:
    network = made("deepseek_v32_cut", torch.device("meta"))
    keys, records = 6 * 132, 6 * 656

    # Six layers of attention with an indexer, three blocks, what all tokens pass of three mixtures.
    attention = 187_105_280 + 13_959_168
    others = 7168 * 129_280 + 3 * 3 * 7168 * 18_432 + 3 * (7168 * 256 + 3 * 7168 * 2048)
    assert step_bytes(network, 0, 0, 0) == pytest.approx(2 * (6 * attention + others), rel=1e-3)
    one, some, many = (step_bytes(network, 2, n, 0) for n in (0, 2000, 40_000))
    assert some - one == 2 * 2000 * (keys + records)
    assert many - one == 2 * (40_000 * keys + 2048 * records)


def test_tokens_that_choose_attend_no_more_and_rate_all() -> None:
    config = made("deepseek_v32_cut", torch.device("meta")).config
    one, two = (prompt_flops(config, tokens) for tokens in (1, 16_384))

    products = 16_384 * (one - 2 * 7168 * 129_280) + 2 * 7168 * 129_280
    attended = 128 * (192 + 128) * (2048 * 16_384 - 2048**2 / 2)
    rated = 64 * 128 * 16_384**2 / 2
    assert two == pytest.approx(products + 2 * 6 * (attended + rated), rel=1e-3)


def test_a_prompt_has_the_operations_of_its_products_and_of_attention() -> None:
    config = made("qwen3_30b_a3b", torch.device("meta")).config
    one, two = (prompt_flops(config, tokens) for tokens in (1, 8192))

    # 3.35 billion numbers for a token, of which the head has 0.31.
    assert one == pytest.approx(2 * 3.0e9, rel=0.03)
    assert two == pytest.approx(8192 * 2 * (2.7e9 + 48 * 32 * 128 * 8192), rel=0.03)


def test_windows_are_read_as_far_as_they_reach() -> None:
    network = made("gpt_oss_20b", torch.device("meta"))
    weights = step_bytes(network, 0, 0, 0)

    # Attention, routers and the head of 20.9 billion parameters; biases and norms are float32.
    assert weights == pytest.approx(2 * 1.22e9, rel=5e-3)
    token = 12 * 2 * 8 * 64 * 2
    assert step_bytes(network, 3, 100, 0) - weights == 300 * 2 * token
    assert step_bytes(network, 3, 1000, 0) - weights == 3 * (1000 + 128) * token
    assert step_bytes(network, 0, 0, 5) - weights == 5 * 3 * 2880 * 2880 * 2
    # 3.6 billion numbers for a token, of which the head has 0.58.
    one, two = (prompt_flops(network.config, tokens) for tokens in (1, 8192))
    assert one == pytest.approx(2 * 3.6e9, rel=0.01)
    pairs = 12 * 2 * 64 * 64 * (4096 + 128)
    assert two == pytest.approx(8192 * 2 * (3.03e9 + pairs), rel=0.03)


def test_a_cut_of_layers_keeps_their_turns() -> None:
    network = made("gpt_oss_20b", torch.device("meta"), cut(FOLDER.parent / "gpt_oss_20b", 4))

    assert isinstance(network, CudaGptOss)
    assert network.config.sliding == (True, False, True, False)


def test_latents_count_as_keys_and_values_that_are_made_once() -> None:
    config = made("deepseek_v2_lite", torch.device("meta")).config
    one, two = (prompt_flops(config, tokens) for tokens in (1, 8192))

    # 2.66 billion numbers for a token, of which the head has 0.21.
    assert one == pytest.approx(2 * 2.45e9, rel=0.03)
    pairs = 27 * 16 * (192 + 128) * 8192 / 2
    assert two == pytest.approx(8192 * 2 * (2.24e9 + pairs), rel=0.03)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("qwen3_8b", "num_attention_heads=2,num_key_value_heads=1"),
        ("deepseek_v2_lite", "num_attention_heads=2,n_routed_experts=8,first_k_dense_replace=0"),
        ("gpt_oss_20b", "num_attention_heads=2,num_key_value_heads=1,layer_types=null"),
        ("deepseek_v32_cut", "num_attention_heads=2,n_routed_experts=8,n_group=2,topk_group=2"),
    ],
)
def test_steps_go_on_and_prompts_are_computed(name: str, more: str) -> None:
    sizes = "num_hidden_layers=1,hidden_size=64,intermediate_size=64,vocab_size=96"
    network = made(name, CPU, f"{sizes},{more},eos_token_id=1,bos_token_id=0")
    fill_dummy(network, 3)
    rows = Rows(network, 2, 300)
    pool = next(pool for pool in rows.pools.tensors().values() if len(pool))
    before = pool.clone()

    rows.prefill(20)()
    step = rows.decoder(2, 290)
    step()
    step()

    changed = (pool != before).any(-1).sum()
    assert int(changed) == 20 + 4
