"""Brings a checkpoint's network to the device of a rank."""

import os
from pathlib import Path

import torch

from layers.models.contract import Model
from layers.parallel.ranks import Ranks
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.executor.cuda_model import load_on_cuda
from runtime.executor.device_choice import choose_device, choose_settings
from runtime.executor.loaded_model import LoadedModel, load_on_cpu

__all__ = ["load_model", "logit_rows"]

# Bounds the logits of prompt positions that one step holds: 2^26 floats are 256 MiB.
_LOGIT_ELEMENTS = 1 << 26
_SMALL_HIDDEN_SIZE = 1024


def load_model(
    config: ServerConfig,
    folder: Path,
    model: Model,
    ranks: Ranks,
    device: torch.device | None = None,
) -> LoadedModel:
    """Load what this rank holds. Raises ConfigError, ConfigFault, WeightError.

    device  None: as flags and the machine have it
    """
    torch.set_num_threads(_threads(model.facts.hidden_size))
    device = device or choose_device(config, model)
    given, settings = device_sizes(config, device.type), choose_settings(config, device)
    if device.type == "cpu":
        return load_on_cpu(config, folder, model, settings=settings, given=given, ranks=ranks)
    return load_on_cuda(
        config,
        folder,
        model,
        settings=settings,
        given=given,
        device=device,
        logit_rows=logit_rows(model.facts.vocab_size),
        ranks=ranks,
    )


def logit_rows(vocab_size: int) -> int:
    """Return of how many prompt positions a step may compute the logits."""
    return max(1, _LOGIT_ELEMENTS // vocab_size)


def _threads(hidden_size: int) -> int:
    """Return how many threads torch computes with on the CPU: one for a small network.

    Its operations last microseconds, less than threads take to meet; where other processes want
    the cores, the meeting takes a time slice (seen: 0.07 s against 0.5 s a decode step). The
    larger count is a power of two, so that tensors are cut at whole vectors.
    """
    if hidden_size < _SMALL_HIDDEN_SIZE:
        return 1
    return 1 << (min(8, os.cpu_count() or 1).bit_length() - 1)
