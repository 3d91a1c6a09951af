"""Compiles Triton kernels for Hopper on any machine, and says what they need there.

Instead of launching, each launch inside `launches` is compiled for compute capability 9.0 with the
sizes and flags of the call; tensors may lie on the device `meta`, which has no memory. This finds
what the interpreter cannot: code that does not compile, registers that spill, tiles that do not
fit.
"""

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton  # pyright: ignore[reportMissingTypeStubs]
from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingTypeStubs]
from triton.compiler import ASTSource  # pyright: ignore[reportMissingTypeStubs]
from triton.runtime.jit import JITFunction  # pyright: ignore[reportMissingTypeStubs]

HOPPER = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel as compiled for one launch: registers a thread, bytes of stack and shared memory.

    code  in PTX
    """

    name: str
    grid: tuple[int, ...]
    registers: int
    stack_bytes: int
    shared_bytes: int
    code: str


@contextlib.contextmanager
def launches() -> Iterator[list[Launch]]:
    """Compile what is launched inside, each variant once, and return it at the end."""
    found: dict[str, Launch] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **options: Any) -> None:
        del warmup
        names = {parameter.name for parameter in self.params}
        values = dict(zip(self.arg_names, args, strict=False))
        values |= {name: value for name, value in options.items() if name in names}
        flags = {name: value for name, value in options.items() if name not in names}
        types, constants, facts = _signature(self, values)
        key = str((self.__name__, types, constants, flags))
        if key not in found:
            source = ASTSource(self, types, constants, facts)
            code = triton.compile(source, target=HOPPER, options=flags)
            found[key] = _launch(self.__name__, tuple(grid), code)

    listed: list[Launch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", run)
        yield listed
    listed.extend(found.values())


def _signature(
    kernel: Any, values: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """Return types, constants and divisibility of a call's arguments, as a launch finds them."""
    types: dict[str, str] = {}
    constants: dict[str, Any] = {}
    facts: dict[tuple[int], list[list[Any]]] = {}
    for place, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        one = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or one:
            types[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            types[parameter.name] = f"*{TYPES[value.dtype]}"
            facts[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(value, int):
            types[parameter.name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                facts[(place,)] = [["tt.divisibility", 16]]
        else:
            types[parameter.name] = "fp32"
    return types, constants, facts


def _launch(name: str, grid: tuple[int, ...], code: Any) -> Launch:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert usage, told
    shared = int(code.metadata.shared)
    return Launch(name, grid, int(usage[1]), int(usage[2]), shared, code.asm["ptx"])
