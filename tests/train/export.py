"""From parameters to a checkpoint folder in the published format.

`python -m tests.train.export FOLDER --parameters RUN --tokenizer FOLDER` writes one from a run's
state or from its portable files.
"""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any, cast

import safetensors.torch
import torch
from torch import Tensor

from layers.weights.quant import quantise_fp8
from tests.train.geometry import default_config
from tests.train.model_card import CARD
from tests.train.run_state import load_portable, load_state
from tests.train.storage import stored_as
from tests.train.trainer import STATE

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_GENERATION = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False, "temperature": 0.0}


def write_checkpoint(
    folder: Path,
    parameters: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    tokenizer: Path | None = None,
    measured: Mapping[str, str] | None = None,
) -> None:
    """Write `config.json`, `generation_config.json`, `model.safetensors` and `MODEL_CARD.md`.

    parameters  by published name, dense, any device
    config      what `config.json` is to hold
    tokenizer   folder whose tokenizer files are copied, None: the checkpoint has none
    measured    figures for the card, by their names in it; what is missing is said to be
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in (("config.json", config), ("generation_config.json", _GENERATION)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    stored: dict[str, Tensor] = {}
    for name, tensor in parameters.items():
        stored |= _stored(name, tensor.detach().cpu())
    path = folder / "model.safetensors"
    cast(Any, safetensors.torch).save_file(stored, path, metadata={"format": "pt"})
    figures = {
        "parameters": f"{sum(tensor.numel() for tensor in parameters.values()) / 1e6:.1f}",
        "megabytes": f"{path.stat().st_size / 1e6:.1f}",
        **(measured or {}),
    }
    (folder / "MODEL_CARD.md").write_text(model_card(figures), encoding="utf-8")
    for name in TOKENIZER_FILES if tokenizer is not None else ():
        shutil.copyfile(cast(Path, tokenizer) / name, folder / name)


def model_card(figures: Mapping[str, str]) -> str:
    """Return the card with its figures filled in; those that are missing read "not measured"."""
    template = Template(CARD)
    wanted = dict.fromkeys(template.get_identifiers(), "not measured")
    return template.substitute({**wanted, **figures})


def _stored(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return what a file keeps of a tensor: itself, or codes and scales."""
    match stored_as(name):
        case "fp8":
            codes, scale = quantise_fp8(tensor)
            return {name: codes, name.removesuffix(".weight") + ".scale": scale}
        case "bf16":
            return {name: tensor.to(torch.bfloat16)}
        case "f32":
            return {name: tensor.to(torch.float32)}
        case "i64":
            return {name: tensor.to(torch.int64)}


def _read_parameters(folder: Path) -> dict[str, Tensor]:
    """Return the parameters of a run's folder, or of portable files."""
    if (folder / STATE).is_dir():
        return load_state(folder / STATE)[1]
    return load_portable(folder)[1]


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.train.export", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--parameters", type=Path, required=True, help="a run, or portable files")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument(
        "--measured", type=Path, nargs="+", default=[], help="JSON objects of figures for the card"
    )
    options = parser.parse_args()
    measured: dict[str, str] = {}
    for held in options.measured:
        measured |= json.loads(held.read_text(encoding="utf-8"))
    write_checkpoint(
        options.folder,
        _read_parameters(options.parameters),
        default_config(),
        tokenizer=options.tokenizer,
        measured=measured,
    )


if __name__ == "__main__":
    _main()
