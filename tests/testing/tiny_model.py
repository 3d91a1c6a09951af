"""A random network small enough for every test, with every kind of layer and odd sizes."""

import dataclasses

import torch

from layers.linear.contract import Named
from layers.models.deepseek_v4.config import ModelConfig, pool_spec
from layers.models.deepseek_v4.model import ReferenceV4, angles
from layers.models.deepseek_v4.pool_spec import RecordFormat
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.contract import StepSizes
from layers.steps.forward_batch import ForwardBatch
from layers.steps.reference.reference_step import ReferenceStep
from layers.weights.loading import fill_dummy
from mem_cache.spec import PoolSizes, TreeSpec
from tests.testing.direct import CPU, Direct

CONFIG = ModelConfig(
    vocab_size=97,
    hidden_size=42,
    num_hidden_layers=4,
    num_attention_heads=6,
    head_dim=48,
    qk_rope_head_dim=16,
    q_lora_rank=23,
    o_groups=2,
    o_lora_rank=11,
    n_routed_experts=5,
    num_experts_per_tok=2,
    moe_intermediate_size=27,
    routed_scaling_factor=1.5,
    swiglu_limit=2.5,
    num_hash_layers=1,
    index_n_heads=5,
    index_head_dim=32,
    index_topk=24,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    sliding_window=128,
    compress_ratios=(0, 4, 128, 4),
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=None,
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    eos_token_ids=(1,),
    model_type="deepseek_v4",
    architectures=("DeepseekV4ForCausalLM",),
)
# The packed record wants 448 + 64 channels.
PACKED = dataclasses.replace(CONFIG, head_dim=512, qk_rope_head_dim=64, index_head_dim=128)
# Each kind of layer once, so that a replay is short; tokens attend 32 blocks of 4.
EVERY_KIND = dataclasses.replace(
    PACKED,
    hidden_size=256,
    num_hidden_layers=3,
    compress_ratios=(4, 128, 0),
    q_lora_rank=128,
    o_lora_rank=128,
    n_routed_experts=8,
    moe_intermediate_size=128,
    index_topk=32,
)


def build(
    record_format: RecordFormat = "fp32",
    dtype: torch.dtype = torch.float32,
    model: ReferenceV4 | None = None,
) -> Direct:
    """Return a random network, unless one is given, with poisoned pools."""
    if model is None:
        model = ReferenceV4(PACKED if record_format == "fp8" else CONFIG, CPU, dtype)
        fill_dummy(model, 7)
    direct = Direct(model, record_format)
    direct.poison()
    return direct


def prompt(length: int, seed: int) -> list[int]:
    """Return random token ids."""
    generator = torch.Generator(CPU).manual_seed(seed)
    ids = torch.randint(CONFIG.vocab_size, (length,), generator=generator, device=CPU)
    return ids.tolist()


def cold_batch(length: int, seed: int = 0) -> ForwardBatch:
    """Return a step of one row at [0, length): pages 1.., its window and ring kept in unit 1..

    length  at most 512
    """
    tree = TreeSpec()
    pages = torch.arange(1, -(-length // tree.page_size) + 1, dtype=torch.int32)
    window = torch.zeros((1, tree.window_pages), dtype=torch.int32)
    for slot in range(tree.window_pages_at(length)):
        window[0, slot] = slot + 1
    return ForwardBatch(
        input_ids=torch.tensor(prompt(length, seed)),
        chunk_start=torch.tensor([0]),
        chunk_len=torch.tensor([length]),
        page_table=pages.unsqueeze(0),
        window=torch.zeros_like(window),
        ring=torch.tensor([1], dtype=torch.int32),
        window_from=torch.tensor([0]),
        write_from=torch.tensor([0]),
        save_row=torch.tensor([0]),
        save_position=torch.tensor([length]),
        save_ring=torch.tensor([1], dtype=torch.int32),
        save_window=window,
        logit_tokens=torch.tensor([length - 1]),
    )


def one_layer(
    ratio: int, batch: ForwardBatch, record_format: RecordFormat = "fp32"
) -> tuple[ModelConfig, KvPools, ReferenceStep]:
    """Return the configuration, poisoned pools and a step of a model of one layer."""
    base = PACKED if record_format == "fp8" else CONFIG
    config = dataclasses.replace(base, num_hidden_layers=1, compress_ratios=(ratio,))
    spec = pool_spec(config, record_format)
    pools = KvPools(spec, PoolSizes(full_pages=3, swa_pages=9, states=2), CPU)
    for tensor in pools.tensors().values():
        tensor.view(torch.uint8).fill_(0xFF)
    sizes = StepSizes(config.index_topk, config.rms_norm_eps)
    return config, pools, ReferenceStep(batch, pools, sizes, angles(config, CPU))


def plain_weights(
    named: Named,
) -> dict[str, torch.Tensor]:
    """Return by name the weights that are tensors."""
    return {name: weight for name, weight in named if isinstance(weight, torch.Tensor)}


def randomise(
    named: Named,
) -> dict[str, torch.Tensor]:
    """Fill plain weights with numbers that keep activations near one; return them by name."""
    weights = plain_weights(named)
    for name, weight in weights.items():
        if name.endswith("norm.weight"):
            weight.uniform_(0.5, 1.5)
        else:
            weight.normal_(std=weight.shape[-1] ** -0.5 if weight.ndim > 1 else 1.0)
    return weights
