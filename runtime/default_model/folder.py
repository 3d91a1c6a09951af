"""Where the default model's checkpoint lies, and whether all of it is there."""

import os
from pathlib import Path

from runtime.errors import ConfigError

NAME = "default"
CHECKPOINT = Path(__file__).with_name("checkpoint")
FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def default_model_folder() -> Path:
    """Return the checkpoint folder of the model that is served where no other is named.

    Raises ConfigError, naming the files, where the installation or checkout lacks some.
    """
    missing = [name for name in FILES if not os.path.isfile(CHECKPOINT / name)]
    if missing:
        raise ConfigError(
            f"the default model is not complete: {CHECKPOINT} lacks {', '.join(missing)}; "
            "check out or install all of it, or name a checkpoint with --model-path"
        )
    return CHECKPOINT
