"""Which device, which precision, and which flags contradict them."""

import dataclasses
import logging
from pathlib import Path

import pytest
import torch

from layers.models.contract import Settings
from layers.models.deepseek_v4.model import V4Model
from layers.models.json_fields import ConfigFault
from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.executor.device_choice import choose_device, choose_settings
from tests.testing.tiny_model import CONFIG

ROOT = Path(__file__).resolve().parents[3]
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
FITS = V4Model(
    dataclasses.replace(
        CONFIG,
        **{"head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "hidden_size": 256},
        **{"q_lora_rank": 128, "o_lora_rank": 128, "moe_intermediate_size": 128},
    )
)
TINY = V4Model(CONFIG)
MODULE = choose_device.__module__


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a CUDA device, and all that a network on it needs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    for name in ("why_no_nvcc", "why_no_deep_gemm", "why_no_flash_mla"):
        monkeypatch.setattr(f"{MODULE}.{name}", lambda: None)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_the_cpu_computes() -> None:
    assert choose_device(ServerConfig(), FITS) == CPU
    with pytest.raises(ConfigError, match="--device cuda"):
        choose_device(ServerConfig(device="cuda"), FITS)


@pytest.mark.usefixtures("one_gpu")
def test_with_a_gpu_it_computes_unless_told_otherwise() -> None:
    assert choose_device(ServerConfig(), FITS) == CUDA
    assert choose_device(ServerConfig(device="cuda"), FITS) == CUDA
    assert choose_device(ServerConfig(device="cpu"), FITS) == CPU


@pytest.mark.usefixtures("one_gpu")
def test_each_rank_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig(device="cuda", tp_size=2, base_gpu_id=1)
    with pytest.raises(ConfigError, match=r"--tp-size 2 .* 3 CUDA devices, and torch finds 1"):
        choose_device(config, FITS)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)

    devices = [choose_device(config, FITS, rank) for rank in range(2)]

    assert devices == [torch.device("cuda", 1), torch.device("cuda", 2)]


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_a_gpu_of_another_kind_is_left_alone_and_this_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capability: tuple[int, int],
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A card")
    with caplog.at_level(logging.INFO, logger="umbra.scheduler"):
        assert choose_device(ServerConfig(), FITS) == CPU

    assert "A card has" in caplog.text
    with pytest.raises(ConfigError, match="Hopper"):
        choose_device(ServerConfig(device="cuda"), FITS)


@pytest.mark.usefixtures("one_gpu")
def test_without_a_compiler_a_gpu_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.why_no_nvcc", lambda: "no CUDA compiler")

    assert choose_device(ServerConfig(), FITS) == CPU
    with pytest.raises(ConfigError, match="no CUDA compiler"):
        choose_device(ServerConfig(device="cuda"), FITS)


@pytest.mark.usefixtures("one_gpu")
def test_a_network_that_does_not_fit_the_gpu_runs_on_the_cpu_and_this_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="umbra.scheduler"):
        assert choose_device(ServerConfig(), TINY) == CPU

    assert "on the CPU, although there is a GPU: head_dim is 48" in caplog.text
    with pytest.raises(ConfigFault, match="head_dim"):
        choose_device(ServerConfig(device="cuda"), TINY)


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("deep_gemm", r"sgl-deep-gemm, and .* installed: pip install -e '.\[cuda\]'"),
        ("flash_mla", "sgl-flash-mla, and .* installed: pip install --no-deps sgl-flash-mla=="),
    ],
)
def test_without_a_vendors_library_a_gpu_is_left_alone_and_the_command_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: str,
    command: str,
) -> None:
    monkeypatch.setattr(f"{MODULE}.why_no_{module}", lambda: f"{module} is not installed")
    with caplog.at_level(logging.INFO, logger="umbra.scheduler"):
        assert choose_device(ServerConfig(), FITS) == CPU

    assert "on the CPU, although there is a GPU: the network on a GPU needs" in caplog.text
    with pytest.raises(ConfigError, match=command):
        choose_device(ServerConfig(device="cuda"), FITS)


@pytest.mark.usefixtures("one_gpu")
def test_the_release_that_is_installed_by_itself_is_the_one_that_was_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{MODULE}.why_no_flash_mla", lambda: "flash_mla is not installed")

    with pytest.raises(ConfigError) as told:
        choose_device(ServerConfig(device="cuda"), FITS)

    command = str(told.value).partition(": ")[2]
    assert f"`{command}`" in (ROOT / "pyproject.toml").read_text("utf-8")


def test_flags_become_settings() -> None:
    assert choose_settings(ServerConfig(), CPU) == Settings()
    of_cpu = ServerConfig(dtype="bfloat16", kv_cache_dtype="bf16")
    assert choose_settings(of_cpu, CPU) == Settings(dtype="bfloat16", kv_cache_dtype="bf16")
    of_cuda = ServerConfig(kv_cache_dtype="fp8", experts="fp4", deterministic=True)
    assert choose_settings(of_cuda, CUDA) == Settings(
        kv_cache_dtype="fp8", experts="fp4", deterministic=True
    )


@pytest.mark.parametrize(
    ("config", "device", "words"),
    [
        (ServerConfig(dtype="float32"), CUDA, "--dtype float32 is for the CPU"),
        (ServerConfig(kv_cache_dtype="fp32"), CUDA, "--kv-cache-dtype fp32 is for the CPU"),
        (ServerConfig(chunked_prefill_size=-1), CUDA, "--chunked-prefill-size -1 is for the CPU"),
        (ServerConfig(experts="fp4"), CPU, "--experts is for CUDA"),
        (ServerConfig(cuda_graph_bs=(1,)), CPU, "--cuda-graph-bs is for CUDA"),
    ],
    ids=lambda value: "" if isinstance(value, ServerConfig) else str(value),
)
def test_flags_of_another_device_are_refused(
    config: ServerConfig, device: torch.device, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_settings(config, device)
