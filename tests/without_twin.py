"""Sources without a test file of their own, and why that is enough."""

NO_TWIN: dict[str, str] = {
    "layers/models/cuda_decoder.py": "gqa/test_cuda_network.py computes with it",
    "layers/models/gpt_oss/bf16_step.py": "test_cuda_network.py computes with it",
    "layers/models/mla/sparse_network.py": "test_sparse_model.py holds it against transformers",
    **{
        f"layers/models/{part}.py": "the test_model.py of a family holds it to its promises"
        for part in (
            *("gpt_oss/experts", "gpt_oss/network", "gpt_oss/step", "gqa/network", "gqa/step"),
            *("gemma3/network", "mla/network", "mla/step", "plain_decoder", "plain_model", "wired"),
        )
    },
    "layers/models/rope_scaling.py": "fields only; test_rope.py computes with them",
    "mem_cache/errors.py": "two classes, raised and caught throughout tests/mem_cache",
    "mem_cache/transfer.py": "fields only; layers/parallel/test_transfer.py copies by them",
    "runtime/chat/chat_prompt.py": "fields only; test_v4_encoder.py pins where they come from",
    "runtime/command_line.py": "test_config.py parses with it",
    "runtime/errors.py": "classes only, pinned by tests/runtime/server",
    "runtime/executor/interface.py": "a contract without code; test_remote.py fills it",
    "runtime/parser_names.py": "names only; test_answer_format.py holds them against the formats",
    **{
        f"runtime/replicas/{part}.py": "end_to_end/test_replicas.py runs it on Ray"
        for part in (
            *(
                "__main__",
                "desk",
                "ray_app",
                "ray_router",
                "ray_service",
                "server_child",
                "server_process",
            ),
        )
    },
    "runtime/replicas/fleet.py": "test_front.py and test_overview.py fetch by it",
    **{
        f"runtime/server/{part}.py": "end_to_end/test_observability.py asks two servers for it"
        for part in ("dashboard_panels", "promql")
    },
    "runtime/scheduler/settings.py": "fields only; test_process.py pins where each comes from",
}
