"""Token ids that a checkpoint's files name, and how many there may be."""

from typing import Any, cast

from layers.models.json_fields import ConfigFault, positive_int

__all__ = ["MAX_VOCAB_SIZE", "end_ids", "token_id", "vocab_size"]

# What `jit_kernels.sample` takes, which loads torch.
MAX_VOCAB_SIZE = 2**18


def vocab_size(raw: dict[str, Any]) -> int:
    """Return how many token ids there are. Raises ConfigFault where they are too many."""
    count = positive_int(raw, "vocab_size")
    if count > MAX_VOCAB_SIZE:
        raise ConfigFault(f"vocab_size must be at most {MAX_VOCAB_SIZE}, got {count}")
    return count


def end_ids(raw: dict[str, Any], generation: dict[str, Any], count: int) -> tuple[int, ...]:
    """Return the ids that end a sequence: of config.json, then those that only
    generation_config.json has.

    count  token ids that there are
    Raises ConfigFault for an id that the vocabulary does not have.
    """
    ids: dict[int, None] = {}
    for source in (raw, generation):
        value: Any = source.get("eos_token_id")
        if value is None:
            continue
        for item in cast(list[Any], value) if isinstance(value, list) else [value]:
            ids[token_id(item, "eos_token_id", count)] = None
    return tuple(ids)


def token_id(value: object, name: str, count: int) -> int:
    """Return the id that the field `name` holds. Raises ConfigFault for what is none."""
    if type(value) is not int or not 0 <= value < count:
        raise ConfigFault(f"{name} must be a token id below {count}, got {value!r}")
    return value
