"""Which device the network computes on, and which flags contradict that."""

import logging
from collections.abc import Sequence

import torch

from jit_kernels.cuda_device import HOPPER, why_no_nvcc
from jit_kernels.vendor_library import why_no_deep_gemm, why_no_flash_mla
from layers.models.contract import Model, Settings
from layers.models.json_fields import ConfigFault
from runtime.config import ServerConfig
from runtime.errors import ConfigError

__all__ = ["choose_device", "choose_settings"]

logger = logging.getLogger("umbra.scheduler")


def choose_device(config: ServerConfig, model: Model, rank: int = 0) -> torch.device:
    """Return the device of a rank that the flag names; by default CUDA, if it is there and fits.

    Raises ConfigError where there is no such device or it is of another kind, ConfigFault where the
    network does not fit it.
    """
    if config.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if config.device == "cuda":
            raise ConfigError("--device cuda: torch finds no CUDA device")
        return torch.device("cpu")
    _check_count(config)
    try:
        _check_hopper(config.base_gpu_id + rank)
        model.check_cuda()
        _check_wheels(model.wheels)
    except (ConfigError, ConfigFault) as fault:
        if config.device == "cuda":
            raise
        logger.info("The network computes on the CPU, although there is a GPU: %s", fault)
        return torch.device("cpu")
    return torch.device("cuda", config.base_gpu_id + rank)


def _check_count(config: ServerConfig) -> None:
    there, wanted = torch.cuda.device_count(), config.base_gpu_id + config.tp_size
    if wanted > there:
        raise ConfigError(
            f"--tp-size {config.tp_size} from --base-gpu-id {config.base_gpu_id} on needs {wanted} "
            f"CUDA devices, and torch finds {there}"
        )


def _check_hopper(index: int) -> None:
    major, minor = torch.cuda.get_device_capability(index)
    if major != HOPPER:
        raise ConfigError(
            f"the network runs on Hopper GPUs (compute capability {HOPPER}.0), and "
            f"{torch.cuda.get_device_name(index)} has {major}.{minor}; use --device cpu"
        )
    if (reason := why_no_nvcc()) is not None:
        raise ConfigError(f"the network on a GPU is compiled at first use, and there is {reason}")


def _check_wheels(needed: Sequence[str]) -> None:
    for reason, package, command in (
        (why_no_deep_gemm(), "sgl-deep-gemm", "pip install -e '.[cuda]'"),
        (why_no_flash_mla(), "sgl-flash-mla", "pip install --no-deps sgl-flash-mla==1.0.0"),
    ):
        if package in needed and reason is not None:
            raise ConfigError(f"the network on a GPU needs {package}, and {reason}: {command}")


def choose_settings(config: ServerConfig, device: torch.device) -> Settings:
    """Return how flags want the network to compute on `device`.

    Raises ConfigError for flags that the device does not know.
    """
    if device.type == "cpu":
        _check_flags_of_cpu(config)
    else:
        _check_flags_of_cuda(config)
    return Settings(
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        experts=config.experts,
        deterministic=config.deterministic,
    )


def _check_flags_of_cpu(config: ServerConfig) -> None:
    given = [("--experts", config.experts != "auto"), ("--cuda-graph-bs", config.cuda_graph_bs)]
    for flag, said in given:
        if said:
            raise ConfigError(f"{flag} is for CUDA devices, and the network is on the CPU")


def _check_flags_of_cuda(config: ServerConfig) -> None:
    if config.dtype == "float32":
        raise ConfigError("--dtype float32 is for the CPU: give --device cpu, or leave it out")
    if config.kv_cache_dtype == "fp32":
        raise ConfigError("--kv-cache-dtype fp32 is for the CPU: on CUDA records have fewer bits")
    if config.chunked_prefill_size == -1:
        raise ConfigError(
            "--chunked-prefill-size -1 is for the CPU: the memory of a step must have a bound"
        )
