"""DeepGEMM's functions, which note what they are called with and compute zeros.

With `install` the ops that leave calls to DeepGEMM do so on the CPU, and to nothing else: what
streams few rows there is the reference.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import jit_kernels.registry as registry

PROCESSORS = 132
# Ops by their names in the registry -> what runs them here.
BACKENDS = {
    **dict.fromkeys(("fp8_linear", "fp8_linear_grouped", "bf16_linear"), "mixed"),
    "fp8_linear_invariant": "deep_gemm",
    "fp8_linear_grouped_invariant": "deep_gemm",
    "bf16_linear_invariant": "deep_gemm",
    "grouped_moe": "deep_gemm",
    "paged_logits": "deep_gemm",
    "chunk_logits": "deep_gemm",
}

# A function's name and what selects its kernel.
Seen = tuple[Any, ...]


def install(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """Return the list of calls, one entry each, as they come."""
    seen: list[Seen] = []
    monkeypatch.setitem(sys.modules, "deep_gemm", _module(seen))
    real = registry.select

    def select(op: str, backends: Any) -> Any:
        """Choose among what runs here; where nothing does, what is not called."""
        try:
            return real(op, backends)
        except registry.BackendUnavailable:
            return None

    monkeypatch.setattr(registry, "select", select)
    for op, backend in BACKENDS.items():
        monkeypatch.setitem(registry._CHOSEN, (op, "cuda"), backend)  # pyright: ignore[reportPrivateUsage]
        folder = op.removesuffix("_invariant").removesuffix("_grouped")
        package = importlib.import_module(f"jit_kernels.{folder}")
        name = f"jit_kernels.{folder}.deep_gemm_backend"
        monkeypatch.delitem(sys.modules, name, raising=False)
        module = importlib.import_module(name)
        # Another test finds neither this module nor what it was made for.
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(package, "deep_gemm_backend", module, raising=False)
        function = op.removesuffix("_invariant") + ("_mixed" if backend == "mixed" else "")
        monkeypatch.setattr(package, f"_{op}", _late(name, function))
        _without_a_device(monkeypatch, folder, module)
    return seen


def _late(module: str, function: str) -> Callable[..., Any]:
    return lambda *args: getattr(sys.modules[module], function)(*args)


def _without_a_device(monkeypatch: pytest.MonkeyPatch, folder: str, module: ModuleType) -> None:
    if folder in ("fp8_linear", "bf16_linear"):
        reference = importlib.import_module(f"jit_kernels.{folder}.reference")
        for name, ours in vars(reference).items():
            if name.startswith(folder):
                monkeypatch.setattr(module.cuda_backend, name, ours)
    if folder == "grouped_moe":
        monkeypatch.setattr(module, "run", _sorted_run)
        monkeypatch.setattr(module, "multiply_region", lambda *args, first: None)


def _sorted_run(
    x: tuple[Tensor, Tensor],
    experts: Tensor,
    weights: Tensor,
    parts: Any,
    *,
    out_dtype: torch.dtype,
    product: Callable[..., None],
    first: int,
    **_: Any,
) -> Tensor:
    """Make the products of `jit_kernels.grouped_moe.triton_run.run`, and nothing else."""
    from jit_kernels.expert_blocks.reference import expert_blocks
    from jit_kernels.grouped_moe.sorted_rows import CHANNELS, SortedRows, block_size

    count, width, inner = parts.sizes
    size = block_size(experts.numel(), count)
    blocks = expert_blocks(experts, count, size)
    places = blocks.slots.shape[0]
    for weight, scales, depth in (
        (parts.gate_up, parts.gate_up_scales, width),
        (parts.down, parts.down_scales, inner),
    ):
        codes = torch.empty((places, depth), dtype=torch.float8_e4m3fn)
        row_scales = torch.empty(places * depth // CHANNELS)
        rows = SortedRows(codes, row_scales, blocks.member, min(first, places // size), size)
        out = torch.empty((places, weight.shape[1]), dtype=torch.bfloat16)
        product(rows, weight, scales, out)
    return torch.zeros_like(x[0], dtype=out_dtype)


def _module(seen: list[Seen]) -> ModuleType:
    made: Any = ModuleType("deep_gemm")
    made.__spec__ = ModuleSpec("deep_gemm", None)  # asked for where there is a GPU
    # Of blocks of rows, as it was told, one after the other.
    sizes: list[int] = []

    def product(name: str) -> Callable[..., None]:
        def run(rows: Any, weight: Any, out: Tensor, *more: Any, **options: Any) -> None:
            tensors = [*_flat(rows), *_flat(weight), out, *_flat(more)]
            told = sizes[-1:] if name.startswith("m_grouped") else ()
            seen.append((name, *map(_kind, tensors), *told, *sorted(options.items())))
            out.zero_()

        return run

    def einsum(name: str) -> Callable[..., None]:
        run = product(name)
        return lambda how, *args, **options: run(*args, how=how, **options)

    for name in ("fp8_gemm_nt", "bf16_gemm_nt", "m_grouped_fp8_gemm_nt_contiguous"):
        setattr(made, name, product(name))
    made.fp8_einsum = einsum("fp8_einsum")

    def mqa_logits(q: Tensor, kv: Any, *_: Any, max_seqlen_k: int, **options: Any) -> Tensor:
        seen.append(("fp8_mqa_logits", q.shape[1:], *sorted(options.items())))
        return torch.zeros(q.shape[0], max_seqlen_k)

    def paged(
        q: Tensor, pages: Tensor, weights: Tensor, lengths: Tensor, table: Tensor, schedule: Tensor,
        columns: int, **options: Any,
    ) -> Tensor:  # fmt: skip
        seen.append(("fp8_paged_mqa_logits", q.shape, pages.shape[1:], *sorted(options.items())))
        return torch.zeros(q.shape[0], columns)

    def metadata(lengths: Tensor, page_rows: int, processors: int) -> Tensor:
        seen.append(("get_paged_mqa_logits_metadata", lengths.shape, page_rows, processors))
        return torch.zeros(1)

    made.fp8_mqa_logits, made.fp8_paged_mqa_logits = mqa_logits, paged
    made.get_paged_mqa_logits_metadata = metadata
    made.get_num_sms = lambda: PROCESSORS
    made.set_mk_alignment_for_contiguous_layout = sizes.append
    return made


def _flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [*value]


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return (str(tensor.dtype), tuple(tensor.shape), tensor.stride())
