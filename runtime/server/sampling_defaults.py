"""What a request is sampled with where it says nothing: what the checkpoint recommends."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runtime.config import ServerConfig
from runtime.errors import BadSampling, ConfigError
from runtime.sampling import SamplingSpec

# Fields of `SamplingSpec` by their names there; what is left out is OpenAI's.
SamplingDefaults = Mapping[str, Any]
OPENAIS: SamplingDefaults = MappingProxyType({})

_FILE = "generation_config.json"
# Source: what SGLang and vLLM take from that file.
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty")
_INTEGERS = ("top_k",)


def sampling_defaults(config: ServerConfig, *, vocab_size: int) -> SamplingDefaults:
    """Return what `generation_config.json` of the served checkpoint says of sampling.

    With "do_sample": false that is a temperature of 0, whatever else it says. Nothing is said where
    there is no such file, and with `--sampling-defaults openai`.
    Raises ConfigError for a file that cannot be read, or a value that cannot be.
    """
    path = Path(config.model_path or "") / _FILE
    if config.sampling_defaults == "openai" or config.model_path is None or not path.is_file():
        return OPENAIS
    said = _read(path)
    found: dict[str, Any] = {}
    for names, kinds in ((_NUMBERS, (int, float)), (_INTEGERS, (int,))):
        for name in names:
            value = said.get(name)
            if value is None:
                continue
            if type(value) not in kinds:
                raise ConfigError(f"{_FILE}: {name} must be a number, got {value!r}")
            found[name] = value
    if said.get("do_sample") is False:
        found["temperature"] = 0.0
    try:
        SamplingSpec(**found).validate(vocab_size=vocab_size)
    except BadSampling as fault:
        raise ConfigError(f"{_FILE}: {fault}") from fault
    return MappingProxyType(found)


def _read(path: Path) -> dict[str, Any]:
    try:
        said: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{path}: {fault}") from fault
    if not isinstance(said, dict):
        raise ConfigError(f"{path}: it must hold a JSON object")
    return said
