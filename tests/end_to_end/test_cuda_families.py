"""A server of a family of pages, or of pages and windows, on a GPU: tokens, reuse, graphs, overlap.

`python -m pytest tests/end_to_end/test_cuda_families.py` on a machine with a CUDA device.
"""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from layers.models.contract import Settings
from layers.models.registry import read_model
from layers.weights.loading import load_weights
from tests.conftest import SEED
from tests.testing import gpt_oss_checkpoints, gqa_checkpoints, mla_checkpoints
from tests.testing.gqa_checkpoints import VOCAB, assert_greedy, greedy_share, write
from tests.testing.page_rig import PagedRow, PageRig
from tests.testing.server_process import ServerProcess, running_server
from tests.testing.stand_in.tokenizer import write_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

# Sizes that kernels take: heads of 64 channels, records of 512 + 64.
SIZES = {"head_dim": 64, "hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 192}
EXPERTS = {"moe_intermediate_size": 64, "num_experts": 64}
LATENT = {
    **{"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8, "v_head_dim": 32},
    **{"kv_lora_rank": 512, "qk_rope_head_dim": 64, "intermediate_size": 192},
    **{"moe_intermediate_size": 64, "n_routed_experts": 64},
}
WINDOWED = {
    **{**SIZES, "num_hidden_layers": 2, "num_local_experts": 16, "sliding_window": 128},
    "max_position_embeddings": 4096,
    # Versions of transformers clamp at 7 whatever is said, and take the factor as given, or as the
    # ratio of both lengths.
    "swiglu_limit": 7.0,
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 64.0, "truncate": False},
        **{"original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 1.0},
    },
}
# Far fewer positions than the longest prompts have.
INDEXED = {"index_head_dim": 128, "index_topk": 512}
# Weights, keys and values are bfloat16 here, and float32 in the reference.
MARGIN = 0.15
# Where two experts are rated alike, rounding chooses another one, and logits move by much more. So
# networks of experts need only choose most tokens as the reference does: in bfloat16 the CPU agrees
# with it in 0.85 of them (Qwen3-MoE), 0.95 (V3), 0.96 (V2-Lite) and 0.95 (gpt-oss).
MOST = 0.75
# Beside records that are packed, and positions that are rated alike: on the CPU 0.78.
MOST_PACKED = 0.6
READY_S = 300.0
FLAGS = (
    *("--device", "cuda", "--mem-fraction-static", "0.3", "--max-running-requests", "8"),
    *("--chunked-prefill-size", "512", "--context-length", "4096", "--deterministic"),
)
# Beside the other server.
PLAIN = (*("--mem-fraction-static", "0.6"), "--disable-cuda-graph", "--disable-overlap-schedule")


@pytest.fixture(scope="module", params=["qwen3", "qwen3_moe", "v2_lite", "v3", "v32", "gpt_oss"])
def model(request: pytest.FixtureRequest) -> Any:
    """What transformers makes of the checkpoint."""
    torch.manual_seed(SEED)
    name: str = request.param
    if name == "gpt_oss":
        return gpt_oss_checkpoints.reference("in_turn", **WINDOWED)
    if name in mla_checkpoints.CHECKPOINTS:
        more = {} if name == "v2_lite" else {"q_lora_rank": 64}
        more |= INDEXED if name == "v32" else {}
        return mla_checkpoints.reference(name, **LATENT, **more)
    return gqa_checkpoints.reference(name, **SIZES, **(EXPERTS if name == "qwen3_moe" else {}))


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint."""
    made = write(model, tmp_path_factory.mktemp("family"))
    write_tokenizer(made, max_tokens=4096)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    """A server with graphs and overlap."""
    with running_server("--model-path", str(folder), *FLAGS, ready_s=READY_S) as running:
        yield running


def prompts() -> list[list[int]]:
    """Return prompts of random tokens."""
    draw = random.Random(SEED)
    return [[draw.randrange(10, VOCAB) for _ in range(n)] for n in (1, 7, 64, 300, 511, 900)]


def answers(server: ServerProcess, asked: Sequence[list[int]]) -> list[dict[str, Any]]:
    """Return what is answered to prompts that are asked at once."""

    def ask(ids: list[int]) -> dict[str, Any]:
        return server.generate(ids, max_new_tokens=24, ignore_eos=True)

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(ask, asked))


def packed_share(folder: Path, prompt: list[int], tokens: list[int]) -> float:
    """Return the share of tokens that are the likeliest in plain numbers over packed records."""
    made = read_model(folder).build(torch.device("cpu"), Settings(kv_cache_dtype="fp8"))
    load_weights(made, folder, progress=False)
    rig, row = PageRig(made), PagedRow([*prompt, *tokens])
    stops = range(len(prompt), len(row.tokens))
    best = [int(rig.step([(row, stop)])[0].argmax()) for stop in stops]
    return sum(one == other for one, other in zip(best, tokens, strict=True)) / len(tokens)


def test_tokens_are_those_of_transformers_and_of_a_server_without_graphs(
    server: ServerProcess, folder: Path, model: Any
) -> None:
    asked, info = prompts(), server.get("/server_info")
    told = [reply["output_ids"] for reply in answers(server, asked)]

    kind, pairs = model.config.model_type, list(zip(asked, told, strict=True))
    packed = kind == "deepseek_v32"
    if kind == "qwen3":
        for ids, tokens in pairs:
            assert_greedy(model, ids, tokens, margin=MARGIN)
    elif packed:
        same = [packed_share(folder, *pair) for pair in pairs]
        assert sum(same) / len(same) > MOST_PACKED, same
    else:
        same = [greedy_share(model, *pair) for pair in pairs]
        assert sum(same) / len(same) > MOST, same
    assert (info["device"], info["dtype"]) == ("cuda", "bfloat16")
    assert info["record_format"] == ("fp8" if packed else "bf16")
    assert (info["cuda_graph"], info["overlap"]) == (True, True)
    attends = {"paged_gqa": ("fa3", "triton"), "paged_latent": ("flash_mla", "triton")}
    attends |= {"paged_sparse": ("flash_mla",)}
    chosen = {f"{op}={name}" for op, names in attends.items() for name in names}
    assert any(backend in info["backends"] for backend in chosen)
    with running_server("--model-path", str(folder), *FLAGS, *PLAIN, ready_s=READY_S) as plain:
        assert [reply["output_ids"] for reply in answers(plain, asked)] == told


def test_alone_and_from_the_cache_tokens_are_the_same(server: ServerProcess) -> None:
    asked = prompts()[2:]
    server.post("/flush_cache", {})
    together = answers(server, asked)
    longer = [[*ids, *reply["output_ids"], 17] for ids, reply in zip(asked, together, strict=True)]
    warm = answers(server, longer)

    for ids, reply, other in zip(longer, warm, asked, strict=True):
        assert reply["meta_info"]["cached_tokens"] >= len(other)
        server.post("/flush_cache", {})
        cold = server.generate(ids, max_new_tokens=24, ignore_eos=True)
        assert cold["output_ids"] == reply["output_ids"]
