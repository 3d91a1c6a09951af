"""Tries other sizes for the ops in CUDA C++ on a device: `python -m tests.bench.kernels.tune_cuda`.

    python -m tests.bench.kernels.tune_cuda                  everything, some minutes
    python -m tests.bench.kernels.tune_cuda select route     some of select, route, store
    python -m tests.bench.kernels.tune_cuda select 64 256    at these numbers of tokens only

Each variant is a copy of the op's sources with other constants, compiled by nvcc. Prints one line a
variant, fastest last, beside the time of the sources as they are. Nothing is changed: who finds
better constants writes them into the sources.
"""

import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from jit_kernels.cuda_library import load
from jit_kernels.registry import BackendUnavailable
from jit_kernels.route_topk import cuda_backend as route
from jit_kernels.select_topk import cuda_backend as select
from jit_kernels.store_kv import cuda_backend as store
from tests.bench.kernels.case import FEW, MANY, Case
from tests.bench.kernels.cases import cases
from tests.bench.kernels.timing import graph_us, input_sets

Constants = dict[str, int]

OPS: dict[str, tuple[ModuleType, tuple[str, ...], list[Constants]]] = {
    "route": (route, ("route_topk", "route_hashed"), [{"WARPS": n} for n in (1, 2, 4, 8)]),
    "store": (store, ("norm_rope_store",), [{"THREADS": n} for n in (64, 128, 256)]),
    "select": (select, ("select_topk",), [{"PART": part} for part in (4, 8, 16)]),
}
TOKENS = (1, 16, 64, FEW, MANY)


def changed(source: str, constants: Constants) -> str:
    """Return a source with the constants that it defines set anew."""
    for name, value in constants.items():
        source = re.sub(rf"(\bconstexpr int [^;]*?\b{name} = )[^,;]+", rf"\g<1>{value}", source)
    return source


@contextlib.contextmanager
def variant(op: ModuleType, constants: Constants) -> Iterator[None]:
    """Let the op run a copy of its sources with other constants."""
    memory = [op._library, *([op._scratch] if hasattr(op, "_scratch") else [])]
    home = Path(op.__file__ or "").parent / "cuda"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(home, Path(name) / "cuda"))
        for path in folder.iterdir():
            path.write_text(changed(path.read_text(), constants))
        op.__dict__["load"] = lambda title, _: load(title, folder)
        for one in memory:
            one.cache_clear()
        try:
            yield
        finally:
            op.__dict__["load"] = load
            for one in memory:
                one.cache_clear()


@contextlib.contextmanager
def replaced(op: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Let a name of the op mean something else."""
    kept = op.__dict__[name]
    op.__dict__[name] = value
    try:
        yield
    finally:
        op.__dict__[name] = kept


def time_us(case: Case) -> float:
    """Return the time of a case inside a graph."""
    return graph_us([case.prepare() for _ in range(input_sets(case.moved_bytes))])


def tune(name: str, tokens: tuple[int, ...]) -> None:
    """Print the times of all cases of an op with all variants."""
    op, names, variants = OPS[name]
    wanted = [case for case in cases(tokens) if case.op in names]
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}

    def measure(title: str) -> None:
        for case in wanted:
            try:
                found.setdefault((case.op, case.shape), []).append((time_us(case), title))
            except BackendUnavailable as error:
                sys.stdout.write(f"{title}: {str(error).splitlines()[-1]}\n")
                return
            torch.cuda.empty_cache()

    measure("as it is")
    for constants in variants:
        with variant(op, constants):
            measure(" ".join(f"{key}={value}" for key, value in constants.items()))
    if name == "select":
        for blocks in (1, 3, 4, 8):
            with replaced(op, "BLOCKS", blocks):
                measure(f"BLOCKS={blocks}")
    for (case, shape), times in found.items():
        sys.stdout.write(f"{case} {shape}\n")
        for micros, title in sorted(times)[:6][::-1]:
            sys.stdout.write(f"  {micros:9.2f} us  {title}\n")
        sys.stdout.write(f"  {times[0][0]:9.2f} us  as it is\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Tune what is asked for: ops by name, numbers of tokens; or everything."""
    tokens = tuple(int(word) for word in arguments if word.isdigit()) or TOKENS
    names = [word for word in arguments if not word.isdigit()] or list(OPS)
    with torch.device("cuda"):
        for name in names:
            tune(name, tokens)


if __name__ == "__main__":
    main(sys.argv[1:])
