"""The scheduler process: loads the model, makes the pools, runs the loop, beats the heart."""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from jit_kernels.registry import BackendUnavailable, chosen, unknown_forced
from layers.models.contract import ModelFacts
from layers.models.json_fields import ConfigFault
from layers.models.registry import read_model
from layers.parallel.ranks import OneRank
from layers.weights.checkpoint import WeightError
from mem_cache.request_table import RequestTable
from mem_cache.spec import CacheSpec, PoolSizes, div_ceil
from mem_cache.tree.policy import Lru, TurnPolicy
from mem_cache.units import Units
from runtime.collector import calm_collector
from runtime.config import ServerConfig
from runtime.device_sizes import DeviceSizes, device_sizes
from runtime.errors import ConfigError, WorkerDied
from runtime.executor.attention_choice import choose_attention
from runtime.executor.loading import load_model, logit_rows
from runtime.executor.pool_names import pool_facts, pools_in_words
from runtime.executor.rank_group import start_ranks
from runtime.executor.rank_profiler import profiler_of
from runtime.executor.trace_folder import TraceFolder
from runtime.grammar.nursery import NurserySettings
from runtime.grammar.pool import GrammarPool, PoolSettings
from runtime.heap import keep_freed_memory
from runtime.ipc import Addresses, SchedulerSocket, Socket
from runtime.kv_events_config import parse_kv_events_config
from runtime.messages import Ready
from runtime.scheduler.joint import SoloExecutor
from runtime.scheduler.kv_events import EventSink
from runtime.scheduler.kv_publisher import KvEventPublisher
from runtime.scheduler.loop import Scheduler
from runtime.scheduler.residency import Residency
from runtime.scheduler.resume_policy import ResumePolicy
from runtime.scheduler.settings import CopyLimits, SchedulerSettings
from runtime.wire.loaded import Facts, Loaded

logger = logging.getLogger("umbra.scheduler")

HEARTBEAT_S = 0.5


def run_scheduler(config: ServerConfig, addresses: Addresses) -> None:
    """Serve until told to shut down; the process main behind `launch`.

    Sends `Ready` once the model is loaded, then a `State` every half second. Raises ConfigError
    for flags or a checkpoint that cannot be served, WorkerDied when the parent process is gone.
    """
    if config.model_path is None:
        raise ConfigError("the scheduler needs a model path")
    socket = SchedulerSocket(addresses)
    publisher: KvEventPublisher | None = None
    try:
        # First, so that a port in use is told before weights are read.
        publisher = open_publisher(config)
        try:
            scheduler, ready = build_scheduler(
                config,
                Path(config.model_path),
                socket,
                publisher=publisher,
                private_folder=addresses.folder,
            )
        except (ConfigFault, WeightError, BackendUnavailable) as fault:
            raise ConfigError(str(fault)) from fault
        for fault in unknown_forced():
            logger.warning("%s", fault)
        calm_collector()
        socket.send(ready)
        stop = threading.Event()
        parent = os.getppid()
        beat = threading.Thread(
            target=_beat, args=(scheduler, socket, stop, parent), name="heartbeat", daemon=True
        )
        beat.start()
        try:
            scheduler.run()
        finally:
            stop.set()
            beat.join(timeout=2 * HEARTBEAT_S)
    finally:
        if publisher is not None:
            publisher.close()
        socket.close()


def open_publisher(config: ServerConfig) -> KvEventPublisher | None:
    """Return the publisher that the flag asks for, or None. Raises ConfigError."""
    wanted = parse_kv_events_config(config.kv_events_config)
    return None if wanted is None else KvEventPublisher(wanted)


def _beat(
    scheduler: Scheduler, socket: SchedulerSocket, stop: threading.Event, parent: int
) -> None:
    """Send the scheduler's state until told to stop; end the process when its parent is gone."""
    while not stop.wait(HEARTBEAT_S):
        if os.getppid() != parent:
            logger.error("%s", WorkerDied("the parent process is gone"))
            os._exit(1)
        socket.send(scheduler.state())


def build_scheduler(
    config: ServerConfig,
    folder: Path,
    socket: Socket,
    *,
    clock: Callable[[], float] = time.monotonic,
    publisher: KvEventPublisher | None = None,
    private_folder: str = "",
) -> tuple[Scheduler, Ready]:
    """Load the checkpoint in `folder` and return a scheduler on its device, with its facts.

    private_folder  for the sockets of ranks, where there are several
    """
    model = read_model(folder, config.override_config)
    choice = choose_attention(config, model)
    config = choice.config
    traces = open_traces(config)
    keep_freed_memory()
    if config.tp_size > 1:
        loaded = start_ranks(config, private_folder)
    else:
        loaded = load_model(config, folder, model, OneRank())
    given = device_sizes(config, str(loaded.told.facts["device"]))
    profiler = profiler_of(loaded.runner, traces, say=socket.send)
    scheduler = Scheduler(
        _settings(config, given, model.facts, loaded.told),
        _residencies(config, given, loaded.told, publisher),
        executor=loaded.joint or SoloExecutor(profiler),
        profiles=profiler,
        socket=socket,
        clock=clock,
        grammars=build_grammars(config, folder, model.facts),
    )
    for replica in scheduler.replicas:
        replica.stats.cuda_graph = loaded.told.graphs
    words = pools_in_words(loaded.told.cache, loaded.told.sizes)
    logger.info("KV pools, %s records: %s", loaded.told.cache.record_format, words)
    ready = _ready(config, given, model.facts, loaded.told, publisher)
    ready.info.update(choice.facts)
    return scheduler, ready


def _settings(
    config: ServerConfig, given: DeviceSizes, facts: ModelFacts, told: Loaded
) -> SchedulerSettings:
    cache = told.cache
    return SchedulerSettings(
        context_tokens=told.context_tokens,
        eos_token_ids=facts.eos_token_ids,
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.max_queued_tokens,
        priority_aging_s=config.priority_aging,
        queue_timeout_s=config.queue_timeout,
        request_timeout_s=config.request_timeout,
        chunked_prefill_size=given.chunked_prefill_size,
        schedule_policy=config.schedule_policy,
        check_every_step=config.check_every_step,
        decode_log_interval=config.decode_log_interval,
        max_logit_rows=logit_rows(facts.vocab_size),
        step_context=told.step_context,
        step_samples=told.step_samples,
        overlap=told.in_flight,
        copies=CopyLimits(cache.full_page_bytes, cache.swa_page_bytes, cache.state_bytes),
    )


def _residencies(
    config: ServerConfig, given: DeviceSizes, told: Loaded, publisher: KvEventPublisher | None
) -> list[Residency]:
    """Return one for each replica."""
    return [
        build_residency(
            config,
            told.cache,
            told.sizes,
            told.context_tokens,
            rows=given.max_running_requests,
            event_sink=None if publisher is None else publisher.of_rank(rank),
        )
        for rank in range(config.replicas)
    ]


def _ready(
    config: ServerConfig,
    given: DeviceSizes,
    facts: ModelFacts,
    told: Loaded,
    publisher: KvEventPublisher | None,
) -> Ready:
    return Ready(
        context_tokens=told.context_tokens,
        vocab_size=facts.vocab_size,
        eos_token_ids=list(facts.eos_token_ids),
        info=_facts(facts, told)
        | _replica_facts(config, given, told.sizes.full_pages * told.cache.page_size)
        | {"chunked_prefill_size": given.chunked_prefill_size}
        | _event_facts(publisher),
        memory=told.memory,
    )


def open_traces(config: ServerConfig) -> TraceFolder | None:
    """Return where profiles are written, None where nowhere. Raises ConfigError."""
    if not config.profile_dir:
        return None
    try:
        return TraceFolder(config.profile_dir)
    except (OSError, ValueError) as fault:
        raise ConfigError(f"--profile-dir {config.profile_dir}: {fault}") from fault


def build_grammars(config: ServerConfig, folder: Path, facts: ModelFacts) -> GrammarPool:
    """Return the pool of grammars; nothing is started before the first one is asked for."""
    tokenizer = folder if config.tokenizer_path is None else Path(config.tokenizer_path)
    nursery = NurserySettings(
        str(tokenizer.absolute()), facts.vocab_size, list(facts.eos_token_ids)
    )
    return GrammarPool(
        PoolSettings(
            nursery,
            processes=config.max_grammars,
            limit_s=config.grammar_timeout,
            memory_bytes=config.grammar_memory,
        )
    )


def build_residency(
    config: ServerConfig,
    cache: CacheSpec,
    sizes: PoolSizes,
    context_tokens: int,
    *,
    rows: int,
    event_sink: EventSink | None = None,
) -> Residency:
    """Return empty allocators, table and tree of the given sizes."""
    tree = cache.tree
    return Residency(
        tree,
        units=Units(sizes),
        table=RequestTable(
            tree,
            rows=min(rows, sizes.live_states or rows),
            max_pages=div_ceil(context_tokens, tree.page_size),
        ),
        replay_tokens=cache.replay_tokens,
        reuse=not config.disable_radix_cache,
        policy=ResumePolicy(every_pages=config.resume_every_pages),
        eviction=Lru() if config.eviction_policy == "lru" else TurnPolicy(),
        namespace_tokens=_quota_tokens(config, sizes, tree.page_size),
        event_sink=event_sink,
    )


def _quota_tokens(config: ServerConfig, sizes: PoolSizes, page_size: int) -> int | None:
    """Return what one namespace may keep: a page at least; None where the quota takes nothing."""
    if config.namespace_quota == 1:
        return None
    return max(1, int(config.namespace_quota * sizes.full_pages)) * page_size


def _replica_facts(config: ServerConfig, given: DeviceSizes, tokens: int) -> Facts:
    """Return what ranks have together, where each has rows of its own.

    tokens  that the full pages of one hold
    """
    return {
        "tp_size": config.tp_size,
        "dp_size": config.replicas,
        "enable_dp_attention": config.enable_dp_attention,
        "max_running_requests": config.replicas * given.max_running_requests,
        "tokens_per_replica": tokens,
        "max_total_num_tokens": config.replicas * tokens,
    }


def _event_facts(publisher: KvEventPublisher | None) -> dict[str, str | int | float | bool]:
    if publisher is None:
        return {}
    endpoints = {
        "kv_events_endpoint": publisher.endpoint,
        "kv_events_replay_endpoint": publisher.replay_endpoint,
    }
    return {name: endpoint for name, endpoint in endpoints.items() if endpoint is not None}


def _facts(model: ModelFacts, loaded: Loaded) -> Facts:
    cache, sizes = loaded.cache, loaded.sizes
    backends = chosen("cuda" if loaded.facts["device"] == "cuda" else "cpu")
    return {
        "model_type": model.model_type,
        "architectures": ",".join(model.architectures),
        "num_hidden_layers": model.num_layers,
        **pool_facts(cache, sizes),
        "pool_bytes": loaded.pool_bytes,
        "cuda_graph": loaded.graphs,
        "overlap": loaded.in_flight,
        "backends": ",".join(f"{op}={name}" for op, name in sorted(backends.items())),
        **loaded.facts,
    }
