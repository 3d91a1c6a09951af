"""Whether ranks share attention or have rows of their own, where `--dp-size auto` leaves it open.

Measured with V4-Flash on two H200s at a context of 8,192 (tests/bench/LOG.md): from 8 rows a rank
on, a token takes as long either way, the cache holds twice as many tokens with rows of their own,
and two prompts at once take 457 ms instead of 728. One prompt alone takes 364 ms shared, 457 ms
with rows of their own.
"""

import logging
from dataclasses import dataclass, replace

import torch

from layers.models.contract import Model
from layers.models.json_fields import ConfigFault
from layers.parallel.shares import UnevenShares
from runtime.config import ServerConfig
from runtime.device_sizes import device_sizes
from runtime.executor.device_choice import choose_device, choose_settings
from runtime.executor.host_memory import total_host_bytes
from runtime.wire.loaded import Facts

__all__ = ["LEAST_ROWS", "WEIGHTS_SHARE", "AttentionChoice", "World", "choose_attention", "decide"]

logger = logging.getLogger("umbra.scheduler")

# Rows of a rank from which on a step of rows of their own is as fast as a shared one of all.
LEAST_ROWS = 8
# Weights may take this share of a rank's memory; the rest is for steps, graphs and the cache.
WEIGHTS_SHARE = 0.8
_GB = 1e9


@dataclass(frozen=True, slots=True)
class World:
    """Facts about the ranks that are known before any of them is started.

    ranks         how many there are
    rows          that may run at once in each, if each has its own
    weight_bytes  of a rank with rows of its own
    memory_bytes  that a rank may use
    refusal       why ranks cannot have rows of their own; "": they can
    """

    ranks: int
    rows: int
    weight_bytes: int
    memory_bytes: int
    refusal: str = ""


def decide(world: World) -> tuple[bool, str]:
    """Return whether each rank gets rows of its own, and the reason in words."""
    if world.ranks == 1:
        return False, "there is one rank"
    if world.refusal:
        return False, world.refusal
    if world.rows < LEAST_ROWS:
        return False, f"{world.rows} rows for each rank; fewer than {LEAST_ROWS} are faster shared"
    sizes = (
        f"weights of {world.weight_bytes / _GB:.2f} GB in {world.memory_bytes / _GB:.2f} GB of each"
    )
    if world.weight_bytes > WEIGHTS_SHARE * world.memory_bytes:
        return False, f"{sizes}, which leaves too little for the cache"
    return True, f"{world.rows} rows for each rank, {sizes}"


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """A configuration without `auto`.

    reason  what decided it, "" where flags had
    """

    config: ServerConfig
    reason: str = ""

    @property
    def facts(self) -> Facts:
        """The reason, for `/server_info`."""
        return {"dp_size_reason": self.reason} if self.reason else {}


def choose_attention(config: ServerConfig, model: Model) -> AttentionChoice:
    """Return `config` with a number in place of `--dp-size auto`, and log what decided it.

    `--max-running-requests` counts the rows of all ranks then, and is shared out among them.
    Raises ConfigError or ConfigFault where the network does not fit the device that flags name.
    """
    if config.dp_size != "auto":
        return AttentionChoice(config)
    own, reason = decide(_world(config, model))
    if own:
        rows = config.max_running_requests
        chosen = replace(
            config,
            dp_size=config.tp_size,
            enable_dp_attention=True,
            max_running_requests=None if rows is None else rows // config.tp_size,
        )
        logger.info("--dp-size auto: each rank has rows of its own (%s)", reason)
    else:
        chosen = replace(config, dp_size=1)
        logger.info("--dp-size auto: ranks share all rows (%s)", reason)
    return AttentionChoice(chosen, reason)


def _world(config: ServerConfig, model: Model) -> World:
    ranks = config.tp_size
    if ranks == 1:
        return World(1, rows=0, weight_bytes=0, memory_bytes=0)
    device, refusal, weights = choose_device(config, model), "", 0
    settings = choose_settings(config, device)
    try:
        weights = model.own_rows_bytes(device.type, settings, ranks)
    except (ConfigFault, UnevenShares) as fault:
        refusal = str(fault)
    given = config.max_running_requests
    each = device_sizes(config, device.type).max_running_requests if given is None else None
    return World(
        ranks,
        rows=(given or 0) // ranks if each is None else each,
        weight_bytes=weights,
        memory_bytes=_memory(config, device),
        refusal=refusal,
    )


def _memory(config: ServerConfig, device: torch.device) -> int:
    """Return the bytes that a rank may use: on the CPU all ranks share the host's."""
    if device.type == "cpu":
        return total_host_bytes() // config.tp_size
    total = torch.cuda.get_device_properties(device).total_memory
    return int(config.mem_fraction_static * total)
