"""Compiles as DeepGEMM does, and computes nothing: which call takes which kernel is made up.

`DG_TEST_LAYOUT` says whether commands and entries are those of 0.1 or of 0.2.
"""

import hashlib
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any


def bf16_gemm_nt(a: Any, b: Any, d: Any) -> None:
    """Take one kernel for up to 64 rows and one for more; which also depends on the columns."""
    rows, columns = a.shape[0], b.shape[0]
    if columns == 16:
        raise RuntimeError("no kernel has 16 columns")
    _kernel(f"// {'many' if rows > 64 else 'few'} rows, {columns} columns\n")


def einsum(how: str, a: Any, b: Any, d: Any) -> None:
    """Take no kernel."""


def _kernel(source: str) -> None:
    """Have the kernel there."""
    root, compiler = Path(os.environ["DG_JIT_CACHE_DIR"]), _compiler()
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version + source.encode()).hexdigest()[:32]
    entry = root / "cache" / f"kernel.sm90_bf16_gemm.{digest}"
    if entry.exists():
        return
    made = root / "tmp" / str(uuid.uuid4())
    made.mkdir(parents=True)
    (made / "kernel.cu").write_text(source)
    if os.environ.get("DG_TEST_LAYOUT") == "0.1":
        where, how = made.parent, ["-cubin", "-o"]
    else:
        where, how = made, ["--cubin", "--output-file"]
        (made / ".committed").touch()
    command = [compiler, f"{made}/kernel.cu", *how, f"{made}/kernel.cubin", "-O3"]
    subprocess.run(command, cwd=where, check=True)
    assert (made / "kernel.cubin").stat().st_size
    entry.parent.mkdir(exist_ok=True)
    made.rename(entry)


def _compiler() -> str:
    return os.environ.get("DG_JIT_NVCC_COMPILER") or f"{os.environ['CUDA_HOME']}/bin/nvcc"
