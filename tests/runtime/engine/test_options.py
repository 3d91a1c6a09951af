"""Tests of runtime.engine.options: arguments become settings and bodies, or errors."""

from typing import Any

import pytest

from runtime.config import ServerConfig
from runtime.engine.options import engine_config, prompted, scored
from runtime.errors import BadRequest, ConfigError


def test_flags_are_fields_of_the_servers_configuration() -> None:
    config = engine_config(None, {"full_pages": 8, "namespace_quota": 1})

    assert (config.full_pages, config.namespace_quota) == (8, 1.0)
    assert config.log_level == "warning"


def test_flags_come_before_a_configuration() -> None:
    config = engine_config(ServerConfig(model_path="/m", full_pages=8), {"full_pages": 9})

    assert config == ServerConfig(model_path="/m", full_pages=9)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"full_page": 8}, "no flag full_page: full_pages"),
        ({"xyzzy": 8}, "no flag xyzzy$"),
        ({"port": 80}, "port is for servers"),
        ({"api_key": "k"}, "api_key is for servers"),
        ({"api_key_file": "k"}, "api_key_file is for servers"),
        ({"profile_dir": "p"}, "profile_dir is for servers"),
        ({"log_level_http": "info"}, "log_level_http is for servers"),
        ({"uvicorn_access_log_exclude_prefixes": ["/"]}, "prefixes is for servers"),
        ({"full_pages": "many"}, "full_pages"),
        ({"dtype": "int8"}, "dtype"),
        ({"max_running_requests": 0}, "at least 1"),
        ({"grammar_memory": 1 << 70}, "grammar-memory does not fit"),
        ({"tp_size": 3}, "--tp-size must be 1, 2, 4 or 8"),
        (
            {"ep_size": 2},
            "ep_size=2 is not a flag here: GPUs of one host share a network with --tp-size only",
        ),
        ({"swap_space": 4}, "see --mem-fraction-static and --kv-cache-bytes"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        engine_config(None, flags)


@pytest.mark.parametrize(
    ("params", "asked"),
    [(None, 2), ({"temperature": 0}, 2), ({"n": 2}, 2), ([{}, {"n": 2}], [2, 2])],
)
def test_n_may_stand_beside_the_sampling_parameters(params: Any, asked: Any) -> None:
    body = prompted("x", params, None, stream=False, n=2)

    told = body.sampling_params
    assert told is not None
    assert ([p.n for p in told] if isinstance(told, list) else told.n) == asked


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BadRequest, match="twice"):
        prompted("x", {"n": 3}, None, stream=False, n=2)
    with pytest.raises(BadRequest, match="Expected"):
        prompted("x", None, None, stream=False, n="two")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean priority"):
        prompted("x", None, None, stream=False, n=None, priorit=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected argument 'stream'"):
        scored("x", ["a"], None, {"stream": True})  # type: ignore[typeddict-item]


def test_a_prompt_may_be_ids_or_text() -> None:
    assert prompted(None, None, [1, 2], stream=True, n=None).input_ids == [1, 2]
    assert prompted(["a", "b"], None, None, stream=False, n=None).text == ["a", "b"]
    assert scored("x", ["a", [1]], None, {"unconditional": True}).choices == ["a", [1]]


def test_flags_of_other_engines_that_change_nothing_are_taken() -> None:
    flags = {"tp_size": 1, "enable_chunked_prefill": True, "enable_lora": False, "lora_paths": None}

    config = engine_config(ServerConfig(), {**flags, "radix_eviction_policy": "lru", "model": "/m"})

    assert config == ServerConfig(model_path="/m", eviction_policy="lru")
