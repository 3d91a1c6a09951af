"""Weights of a network: from a checkpoint's files, checked complete, or random.

Names are those of the published files. Quantised tensors (a `.weight` with a `.scale`, or with a
`.weight_scale_inv`, which means the same) become plain numbers on the way, unless the network
keeps them quantised, as a `WeightTarget`; tensors of draft heads (`mtp.*`, and layers that have an
`eh_proj`) are passed over unless the model asks for them, and so are `model.layers.N.` behind the
last layer that the model has.
"""

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from jit_kernels.checks import ShapeError
from layers.weights.checkpoint import (
    Checkpoint,
    TensorFiles,
    TensorHeader,
    WeightError,
    raise_faults,
)
from layers.weights.gguf_checkpoint import GGUF_INDEX, GgufCheckpoint
from layers.weights.part import Part
from layers.weights.quant import (
    FP4_GROUP,
    FP8_BLOCK,
    are_finite,
    dequantise_fp4,
    dequantise_fp8,
    fp4_scale_shape,
    fp8_scale_shape,
)
from layers.weights.random_weights import fill_random
from layers.weights.read_ahead import read_ahead
from layers.weights.stacked import StackedWeight
from layers.weights.weight_target import StoredForm, WeightTarget

__all__ = ["NamedWeights", "WeightError", "fill_dummy", "load_weights"]

logger = logging.getLogger("umbra.weights")

# Where one weight goes; or that, or where a tensor of all experts' weights does.
Single = Tensor | WeightTarget | Part
Target = Single | StackedWeight

_PLAIN = ("BF16", "F16", "F32")
_INTEGERS = ("I64", "I32")
_FP8 = "F8_E4M3"
_FP4 = ("I8", "U8")
_SCALES = ("F8_E8M0", "F32")
# What expanded weights may have besides: Qwen3-FP8 is published so.
_EXPANDED_SCALES = (*_SCALES, "BF16")
_SCALE_SUFFIXES = (".scale", ".weight_scale_inv")
# Codes of stacked experts, and their scales.
_BLOCKS, _BLOCK_SCALES = "_blocks", "_scales"
_DRAFT = "mtp."
_LAYERS = "model.layers."
# What a layer has that is a draft head; all of its tensors have the same beginning.
_DRAFT_LAYER = "eh_proj.weight"
# Old files hold what is derived from the configuration.
_DERIVED = ".rotary_emb.inv_freq"
# A head that is the embedding may be in the file as well.
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# Tensors that are read, or copied to a device, at once: more wait for the interpreter.
_THREADS = 2


class NamedWeights(Protocol):
    """A network that can be filled."""

    def named_weights(self) -> Iterator[tuple[str, Target]]:
        """Yield the published name of each weight, and where it goes.

        That is a writable view of the dense shape, or what stands for quantised storage, or a part
        of either that a rank keeps, or what takes all experts' weights at once.
        """
        ...


def load_weights(
    model: NamedWeights, folder: Path, *, progress: bool = True, turn: tuple[int, int] = (0, 1)
) -> None:
    """Fill every weight of `model` from the files of `folder`, in place.

    progress  show a bar on stderr, one step a file
    turn      this rank, and how many load the same files at once
    Raises WeightError naming the file that is damaged or the tensors that are missing,
    unexpected, of another shape or dtype, or hold values that cannot be. All names, shapes and
    dtypes are checked before the first byte is copied.
    """
    targets = dict(model.named_weights())
    rounded = 0

    def load(name: str) -> int:
        with torch.no_grad():
            return _load_one(name, targets, checkpoint)

    with _opened(folder) as checkpoint, ThreadPoolExecutor(_THREADS) as threads:
        raise_faults(folder, _faults(targets, checkpoint.headers))
        _check_tied(targets, checkpoint)
        _tell_quantised(targets, checkpoint.headers)
        _tell_layers(targets, checkpoint.headers)
        wanted = {
            shard: [name for name in checkpoint.names(shard) if name in targets]
            for shard in checkpoint.shards
        }
        files = {checkpoint.path(shard): names for shard, names in wanted.items() if names}
        for file in tqdm(
            read_ahead([*files], turn=turn),
            desc="Loading safetensors checkpoint shards",
            total=len(files),
            disable=not progress,
        ):
            rounded += sum(threads.map(load, files[file]))
    if rounded:
        logger.warning("%d numbers of fp4 weights were rounded to fp8", rounded)


def _opened(folder: Path) -> TensorFiles:
    """Return the files of a folder, which may name a GGUF file instead of having its own."""
    return (GgufCheckpoint if (folder / GGUF_INDEX).is_file() else Checkpoint)(folder)


def fill_dummy(model: NamedWeights, seed: int) -> None:
    """Fill every weight of `model` with random numbers that depend on `seed` and its name only.

    Numbers differ between devices, and between plain and quantised storage. Sizes are chosen so
    that routing, attention and logits are spread as in a trained model.
    """
    targets = dict(model.named_weights())
    with torch.no_grad():
        for name, view in targets.items():
            fill_random(name, view, seed=seed, experts=_num_experts(name, targets))


def _scale_name(name: str, headers: Mapping[str, TensorHeader]) -> str | None:
    """Return the name of a weight's scale, None where there is none."""
    if name.endswith(_BLOCKS):
        scale = name.removesuffix(_BLOCKS) + _BLOCK_SCALES
        return scale if scale in headers else None
    if not name.endswith(".weight"):
        return None
    names = (name.removesuffix(".weight") + suffix for suffix in _SCALE_SUFFIXES)
    return next((scale for scale in names if scale in headers), None)


def _num_experts(name: str, targets: Mapping[str, Target]) -> int:
    """Return how many experts the routing table `name` chooses from; 0 for any other weight."""
    if not name.endswith(".tid2eid"):
        return 0
    gate = name.removesuffix("tid2eid") + "weight"
    if gate not in targets:
        raise WeightError(f"{name} has no {gate} beside it to tell the number of experts")
    return targets[gate].shape[0]


def _faults(targets: Mapping[str, Target], headers: dict[str, TensorHeader]) -> list[str]:
    faults = [f"{name} is missing" for name in targets if name not in headers]
    known = {*targets, *(_scale_name(name, headers) for name in targets)}
    drafts = (_DRAFT, *_draft_layers(targets, headers))
    last = max(map(_layer_number, targets), default=-1)
    for name in headers:
        beyond = _layer_number(name) > last >= 0
        left_out = beyond or name.startswith(drafts) or _passed_over(name)
        if name not in known and not left_out:
            faults.append(f"{name} is unexpected")
    for name, view in targets.items():
        if name in headers:
            fault = _fault(name, view, headers)
            faults += [f"{name} {fault}"] if fault else []
    return faults


def _layer_number(name: str) -> int:
    """Return N of a name that begins with `model.layers.N.`, -1 for any other."""
    number = name.removeprefix(_LAYERS).partition(".")[0]
    return int(number) if number.isdecimal() and name.startswith(_LAYERS) else -1


def _passed_over(name: str) -> bool:
    """Return whether a tensor may be in a file although the network has no place for it."""
    return name.endswith(_DERIVED) or name == _HEAD


def _draft_layers(targets: Mapping[str, Target], headers: dict[str, TensorHeader]) -> list[str]:
    """Return how the names of layers begin that are draft heads and not part of the network."""
    return [
        name.removesuffix(_DRAFT_LAYER)
        for name in headers
        if name.endswith(f".{_DRAFT_LAYER}") and name not in targets
    ]


def _check_tied(targets: Mapping[str, Target], checkpoint: TensorFiles) -> None:
    """Raise WeightError where a network without a head of its own has a file with another one."""
    if _HEAD in targets or _HEAD not in checkpoint.headers:
        return
    tied = _EMBEDDING in checkpoint.headers
    if not tied or not torch.equal(checkpoint.tensor(_HEAD), checkpoint.tensor(_EMBEDDING)):
        shard = checkpoint.headers[_HEAD].shard
        raise WeightError(
            f"{_HEAD} in {shard} is not the embedding, and the configuration ties them"
        )


def _tell_quantised(targets: Mapping[str, Target], headers: dict[str, TensorHeader]) -> None:
    kept = [
        name
        for name, target in targets.items()
        if not isinstance(target, StackedWeight) and not isinstance(_storage(target), Tensor)
    ]
    count = sum(_form(headers[name]) == "plain" for name in kept)
    if count:
        logger.warning("%d weights of plain numbers are rounded to what the device keeps", count)


def _tell_layers(targets: Mapping[str, Target], headers: dict[str, TensorHeader]) -> None:
    """Log which layers are left out, drafts aside."""
    drafts = tuple(_draft_layers(targets, headers))
    held = [_layer_number(name) for name in headers if not name.startswith(drafts)]
    last = max(map(_layer_number, targets), default=-1)
    most = max(held, default=-1)
    if most > last >= 0:
        logger.warning("files hold layers up to %d, the network has those up to %d", most, last)


def _fault(name: str, target: Target, headers: dict[str, TensorHeader]) -> str | None:
    """Return what is wrong with the header of a tensor that is there, None when it fits."""
    header = headers[name]
    want, form = tuple(target.shape), _form(header)
    scale_name = _scale_name(name, headers)
    scale = None if scale_name is None else headers[scale_name]
    if isinstance(target, StackedWeight):
        return _stacked_fault(target, header, scale)
    storage = _storage(target)
    floating = not isinstance(storage, Tensor) or storage.is_floating_point()
    if not isinstance(storage, Tensor) and (refusal := storage.why_not(form)) is not None:
        return refusal
    if form != "plain" and len(want) == 2 and floating:
        scales = _EXPANDED_SCALES if isinstance(storage, Tensor) else _SCALES
        return _quantised_fault(header, scale, want, scales)
    allowed = _PLAIN if floating else _INTEGERS
    if header.dtype not in allowed:
        return f"is {header.dtype}, expected {' or '.join(allowed)}"
    if scale is not None:
        return f"is {header.dtype} and has a scale"
    return None if header.shape == want else _misshapen(header.shape, want)


def _stacked_fault(
    target: StackedWeight, header: TensorHeader, scale: TensorHeader | None
) -> str | None:
    want, allowed = target.shape, ("U8",) if target.packed else _PLAIN
    if header.dtype not in allowed:
        return f"is {header.dtype}, expected {' or '.join(allowed)}"
    if header.shape != want:
        return _misshapen(header.shape, want)
    if not target.packed:
        return None
    if scale is None:
        return "has no scales"
    if scale.dtype not in ("U8", "F8_E8M0"):
        return f"has scales of {scale.dtype}, expected U8"
    if scale.shape != want[:-1]:
        return f"has scales that {_misshapen(scale.shape, want[:-1])}"
    return None


def _form(header: TensorHeader) -> StoredForm:
    if header.dtype == _FP8:
        return "fp8"
    return "fp4" if header.dtype in _FP4 else "plain"


def _quantised_fault(
    header: TensorHeader,
    scale: TensorHeader | None,
    want: tuple[int, int],
    scales: tuple[str, ...],
) -> str | None:
    if scale is None:
        return f"is {header.dtype} and has no scale"
    if scale.dtype not in scales:
        return f"has a scale of {scale.dtype}, expected {' or '.join(scales)}"
    stored, scale_shape = want, fp8_scale_shape(want)
    if header.dtype in _FP4:
        stored, scale_shape = (want[0], want[1] // 2), fp4_scale_shape(want)
    if header.shape != stored or (header.dtype in _FP4 and want[1] % 2):
        return _misshapen(header.shape, stored)
    if scale.shape != scale_shape:
        return f"has a scale that {_misshapen(scale.shape, scale_shape)}"
    return None


def _misshapen(got: tuple[int, ...], want: tuple[int, ...]) -> str:
    return f"has shape {list(got)}, expected {list(want)}"


def _storage(target: Single) -> Tensor | WeightTarget:
    """Return where the numbers of a weight, or of a part of it, go."""
    return target.target if isinstance(target, Part) else target


def _load_one(name: str, targets: Mapping[str, Target], checkpoint: TensorFiles) -> int:
    """Copy one weight; return how many numbers quantised storage could not hold exactly."""
    target, header = targets[name], checkpoint.headers[name]
    if isinstance(target, StackedWeight):
        scales = _scale(name, checkpoint) if target.packed else None
        target.put(checkpoint.tensor(name), scales)
        return 0
    storage, form = _storage(target), _form(header)
    if not isinstance(storage, Tensor):
        cut = target.cut if isinstance(target, Part) else ()
        stored = checkpoint.tensor(name, _cut_codes(cut, form))
        scale = None if form == "plain" else _scale(name, checkpoint, _cut_scales(cut, form))
        try:
            return _put(storage, stored, scale, form)
        except ShapeError as error:
            raise WeightError(f"{name} in {header.shard}: {error}") from error
    if form != "plain" and len(header.shape) == 2 and storage.is_floating_point():
        _expand(name, target, checkpoint, form)
        return 0
    stored = checkpoint.tensor(name, target.cut if isinstance(target, Part) else ())
    experts = _num_experts(name, targets)
    if experts and stored.numel():
        least, greatest = int(stored.min()), int(stored.max())
        if least < 0 or greatest >= experts:
            fault = f"holds experts {least} to {greatest}, there are {experts}"
            raise WeightError(f"{name} in {header.shard} {fault}")
    storage.copy_(stored)
    return 0


def _expand(name: str, target: Single, checkpoint: TensorFiles, form: StoredForm) -> None:
    """Expand a quantised weight into plain storage; of a part, all of it is expanded first."""
    storage, stored = _storage(target), checkpoint.tensor(name)
    assert isinstance(storage, Tensor)
    # Codes are a quarter of the numbers: they travel, and are expanded where they arrive.
    numbers = _scale(name, checkpoint).to(torch.float32).to(storage.device)
    dequantise = dequantise_fp8 if form == "fp8" else dequantise_fp4
    out = storage
    if isinstance(target, Part):
        out = torch.empty(target.shape, dtype=storage.dtype, device=storage.device)
    dequantise(stored.to(storage.device), numbers, out)
    if isinstance(target, Part):
        storage.copy_(out[target.cut])


def _cut_codes(cut: tuple[slice, ...], form: StoredForm) -> tuple[slice, ...]:
    """Return the index of a part in what a file holds of numbers: fp4 has two in a byte."""
    if form != "fp4" or not cut:
        return cut
    rows, columns = cut
    return rows, slice(columns.start // 2, columns.stop // 2)


def _cut_scales(cut: tuple[slice, ...], form: StoredForm) -> tuple[slice, ...]:
    """Return the index of a part in a file's scales; parts are whole blocks."""
    if not cut:
        return cut
    rows, columns = cut
    high, wide = (1, FP4_GROUP) if form == "fp4" else (FP8_BLOCK, FP8_BLOCK)
    return (
        slice(rows.start // high, -(-rows.stop // high)),
        slice(columns.start // wide, -(-columns.stop // wide)),
    )


def _scale(name: str, checkpoint: TensorFiles, cut: tuple[slice, ...] = ()) -> Tensor:
    scale_name = _scale_name(name, checkpoint.headers)
    assert scale_name is not None, "headers were checked"
    scale = checkpoint.tensor(scale_name, cut)
    if scale.dtype is torch.uint8:
        scale = scale.view(torch.float8_e8m0fnu)
    if not are_finite(scale):
        shard = checkpoint.headers[scale_name].shard
        raise WeightError(f"{scale_name} in {shard} holds NaN")
    return scale


def _put(target: WeightTarget, stored: Tensor, scale: Tensor | None, form: StoredForm) -> int:
    if scale is None:
        target.put_plain(stored)
    elif form == "fp8":
        target.put_fp8(stored, scale)
    else:
        return target.put_fp4(stored, scale)
    return 0
