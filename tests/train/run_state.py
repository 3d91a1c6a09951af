"""A training on disk: all of it, to go on exactly; or its parameters in small files, to travel."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from tests.train.storage import stored_as

PORTABLE_BYTES = 15 << 20
_PROGRESS = "progress.json"
_PARAMETERS, _MOMENTS = "parameters.safetensors", "moments.safetensors"


class StateError(Exception):
    """A folder does not hold a state that can be taken up; the text says why."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a training is.

    step           steps done
    tokens         tokens seen
    seconds        spent training, over all slices
    moment_steps   steps in the optimiser's moments
    lost_at        step at which the moments were last lost, None: never
    """

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    moment_steps: int = 0
    lost_at: int | None = None


def save_state(
    folder: Path,
    progress: Progress,
    parameters: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
) -> None:
    """Write everything to `folder`, replacing what it held only when all is written."""
    fresh, old = folder.with_name(f"{folder.name}.new"), folder.with_name(f"{folder.name}.old")
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(parents=True)
    _write(fresh / _PARAMETERS, parameters)
    _write(fresh / _MOMENTS, moments)
    _write_progress(fresh, progress)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load_state(folder: Path) -> tuple[Progress, dict[str, Tensor], dict[str, Tensor]]:
    """Return (progress, parameters, moments) as `save_state` wrote them, on the CPU.

    Raises StateError.
    """
    return _progress(folder), _read(folder / _PARAMETERS), _read(folder / _MOMENTS)


def save_portable(
    folder: Path,
    progress: Progress,
    parameters: Mapping[str, Tensor],
    *,
    limit: int = PORTABLE_BYTES,
) -> None:
    """Write the parameters alone, matrices as bfloat16, in files of at most `limit` bytes.

    The moments are left out; who takes up such a folder gathers new ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("part-*.safetensors"):
        stale.unlink()
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in parameters.items():
        small = tensor.to(torch.bfloat16) if stored_as(name) in ("fp8", "bf16") else tensor
        # Room for the header: a name, a dtype, a shape and two offsets.
        cost = small.numel() * small.element_size() + len(name) + 128
        if parts[-1] and size + cost > limit:
            parts.append({})
            size = 0
        parts[-1][name] = small
        size += cost
    for number, part in enumerate(parts):
        _write(folder / f"part-{number}.safetensors", part)
    _write_progress(folder, progress)


def load_portable(folder: Path) -> tuple[Progress, dict[str, Tensor]]:
    """Return (progress, parameters) as `save_portable` wrote them, float32 again.

    Raises StateError.
    """
    parameters: dict[str, Tensor] = {}
    for path in sorted(folder.glob("part-*.safetensors")):
        for name, tensor in _read(path).items():
            wide = tensor.dtype == torch.bfloat16
            parameters[name] = tensor.to(torch.float32) if wide else tensor
    if not parameters:
        raise StateError(f"there are no parts in {folder}")
    return _progress(folder), parameters


def read_progress(folder: Path) -> Progress:
    """Return how far a folder of either kind is. Raises StateError."""
    return _progress(folder)


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    cast(Any, safetensors.torch).save_file(held, path)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise StateError(f"there is no {path.name} in {path.parent}")
    return cast(dict[str, Tensor], cast(Any, safetensors.torch).load_file(path))


def _write_progress(folder: Path, progress: Progress) -> None:
    text = json.dumps(asdict(progress), indent=2) + "\n"
    (folder / _PROGRESS).write_text(text, encoding="utf-8")


def _progress(folder: Path) -> Progress:
    try:
        held = json.loads((folder / _PROGRESS).read_text(encoding="utf-8"))
        return Progress(**held)
    except (OSError, ValueError, TypeError) as error:
        raise StateError(f"{folder / _PROGRESS} cannot be taken up: {error}") from error
