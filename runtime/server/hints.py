"""Endpoints of other servers that are not here: what answers instead, or why nothing does."""

from fnmatch import fnmatchcase

# A path, in which * stands for any text -> the hint. The first that fits counts.
_ENDPOINTS = {
    "/v1/responses/*/cancel": "responses are made while their request waits: close its connection",
    "/v1/responses/*/*": "responses are made while their request waits, from the items it sends",
    "/v1/responses/compact": "contexts are not edited: send fewer items",
    "/v1/embeddings /v1/rerank /v1/classify /classify /encode /embeddings /rerank /pooling"
    " /v2/rerank /v2/embed /v1/moderations /v1/fine_tuning/*":
        "text is generated, nothing else",
    "/v1/files* /v1/batches* /v1/messages/batches*":
        "no files are kept, and no batches: send the requests themselves",
    "/v1/score": "use /score: log-probabilities of choices after a prompt",
    "/v1/audio/* /v1/images/* /v1/videos* /v1/realtime": "V4 reads and writes text only",
    "/v1/completions/derender /v1/chat/completions/derender": "use /detokenize",
    "/v1/load_lora_adapter /v1/unload_lora_adapter /load_lora_adapter* /unload_lora_adapter":
        "there are no adapters",
    "/reset_prefix_cache /clear_hicache_storage_backend /reset_mm_cache /reset_encoder_cache":
        "use /flush_cache",
    "/abort_requests": "use /abort_request",
    "/hicache/*": "pages are kept in one memory only",
    "/load /server_load": "use /v1/loads",
    "/readyz /readiness": "use /ready",
    "/livez /healthz /live /liveness /v1/health": "use /health",
    "/weight_version /get_weight_version /tokenizer_info /get_tokenizer_info": "use /model_info",
    "/dump_metrics": "use /metrics",
    "/invocations": "use /v1/chat/completions",
    "/api/*": "use /v1/chat/completions: Ollama's dialect is not spoken",
    "/vertex_generate": "use /generate",
    "/generate_from_file /inference/v1/generate": "use /generate",
    "/parse_function_call": "/v1/chat/completions with tools tells parsed calls",
    "/separate_reasoning": "/v1/chat/completions tells reasoning_content apart",
    "/open_session /close_session /session*":
        "send the whole prompt every time: what was there before is found in the cache",
    "/start_expert_distribution_record* /stop_expert_distribution_record"
    " /dump_expert_distribution_record":
        "nobody counts what experts are asked; /start_profile traces what they cost",
    "/pause /resume /is_paused /pause_generation /continue_generation /sleep /wake_up /is_sleeping"
    " /slow_down /release_memory_occupation /resume_memory_occupation":
        "a running server does not pause: /abort_request ends requests",
    "/update_weights* /update_weight_version /init_weights* /destroy_weights* /get_weights*"
    " /weights_checker /load_weights* /send_weights* /start_weight_update /init_weight_transfer*"
    " /remote_instance* /get_remote_instance* /collective_rpc":
        "weights do not change while a server runs: start another",
    "/set_internal_state /get_internal_state": "settings are flags; /server_info tells the state",
    "/configure_logging": "give --log-requests and --log-level at start",
    "/set_trace_level /trace*": "there is no tracing; /metrics has the times",
    "/freeze_gc": "the collector is calm anyway",
    "/scale_elastic_ep /is_scaling_elastic_ep": "its ranks are those of its start",
    "/add_external_corpus /remove_external_corpus /list_external_corpora":
        "there is no draft decoding",
    "/dumper*": "nothing of a request is written to disk",
    "/add_worker /remove_worker /list_workers /workers* /v1/workers*": "this is no router",
}  # fmt: skip


def endpoint_hint(path: str) -> str | None:
    """Return what to say of a path that other servers have and this one does not."""
    for patterns, hint in _ENDPOINTS.items():
        for pattern in patterns.split():
            if fnmatchcase(path, pattern):
                return hint
    return None
