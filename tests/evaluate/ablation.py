"""Networks that lack a path: what would the answers be without it?

`python -m tests.evaluate.ablation PATH --model-path FOLDER ...` is `launch_server.py` with a
network whose tokens attend to less than they should. Nothing in the server knows of it: the plan of
each step, in which slot 0 stands for no key, is edited on its way to the layers.

    window  no uncompressed key but the token's own
    c4      no block of 4 tokens; the layers that have them see their window alone
    c128    no block of 128 tokens, likewise
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import safetensors.torch
import torch

import layers.steps.reference.reference_step as reference_step
from layers.blocks.rope import RopeFrequencies
from layers.models.deepseek_v4.pool_spec import PoolSpec
from layers.steps.forward_batch import ForwardBatch
from layers.steps.reference.attention_plan import AttentionPlan, plan_attention
from runtime.config import ServerConfig
from runtime.ipc import Addresses
from runtime.launch import serve
from runtime.scheduler.process import run_scheduler

ABLATED_LAUNCHER = ("-m", "tests.evaluate.ablation")
# Next to any logit of attention it has no weight left, in float32 either.
NO_SINK = -1e9

Edit = Callable[[AttentionPlan, int], AttentionPlan]


def without_window(plan: AttentionPlan, window: int) -> AttentionPlan:
    """Hide all window keys but each token's own, which is in slot `window - 1`."""
    own = window - 1

    def hide(index: torch.Tensor) -> torch.Tensor:
        index = index.clone()
        index[:, :own] = 0
        return index

    pooling, fold = plan.pooling, plan.fold
    if pooling is not None:
        chosen = None if pooling.index is None else hide(pooling.index)
        pooling = replace(pooling, window_index=hide(pooling.window_index), index=chosen)
    if fold is not None:
        fold = replace(fold, index=hide(fold.index))
    hidden = replace(plan.window, index=hide(plan.window.index))
    return replace(plan, window=hidden, pooling=pooling, fold=fold)


def without_c4(plan: AttentionPlan, window: int) -> AttentionPlan:
    """Hide all blocks of 4 tokens; the indexer has nothing to choose then."""
    del window
    pooling = plan.pooling
    if pooling is None:
        return plan
    return replace(plan, pooling=replace(pooling, index=pooling.window_index))


def without_c128(plan: AttentionPlan, window: int) -> AttentionPlan:
    """Hide all blocks of 128 tokens."""
    del window
    fold = plan.fold
    if fold is None:
        return plan
    return replace(plan, fold=replace(fold, index=plan.window.index))


PATHS: MappingProxyType[str, Edit] = MappingProxyType(
    {"window": without_window, "c4": without_c4, "c128": without_c128}
)


def without_sinks(model: Path, folder: Path) -> Path:
    """Copy a checkpoint into `folder`, the sinks so low that they weigh nothing.

    Returns `folder`.
    """
    for path in model.iterdir():
        if path.suffix != ".safetensors":
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
            continue
        tensors = safetensors.torch.load_file(path)
        for name, tensor in tensors.items():
            if name.endswith(".attn_sink"):
                tensors[name] = torch.full_like(tensor, NO_SINK)
        cast(Any, safetensors.torch).save_file(
            tensors, folder / path.name, metadata={"format": "pt"}
        )
    return folder


def take_away(path: str) -> None:
    """Have every network in this process lack a path from now on; for a process that ends with it.

    Raises KeyError for what is not in `PATHS`.
    """
    edit = PATHS[path]

    def edited(
        batch: ForwardBatch, spec: PoolSpec, *, live: int, top_k: int, rope: RopeFrequencies
    ) -> AttentionPlan:
        plan = plan_attention(batch, spec, live=live, top_k=top_k, rope=rope)
        return edit(plan, spec.tree.window)

    cast(Any, reference_step).plan_attention = edited


def run_without_window(config: ServerConfig, addresses: Addresses) -> None:
    """Be the scheduler process, without the window."""
    take_away("window")
    run_scheduler(config, addresses)


def run_without_c4(config: ServerConfig, addresses: Addresses) -> None:
    """Be the scheduler process, without the blocks of 4."""
    take_away("c4")
    run_scheduler(config, addresses)


def run_without_c128(config: ServerConfig, addresses: Addresses) -> None:
    """Be the scheduler process, without the blocks of 128."""
    take_away("c128")
    run_scheduler(config, addresses)


def main(argv: list[str]) -> int:
    """Serve without the path that is named first, on the CPU: only its network is edited."""
    path, *flags = argv
    if path not in PATHS:
        print(f"error: {path} is none of {', '.join(PATHS)}", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--device", default="cpu")
    wanted, others = parser.parse_known_args(flags)
    if wanted.device == "cuda":
        print("error: paths are taken away from the network on the CPU", file=sys.stderr)
        return 2
    return serve(
        [*others, "--device", "cpu"], scheduler_main=f"tests.evaluate.ablation:run_without_{path}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
