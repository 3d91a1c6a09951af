"""Flags of other servers: what says the same here, or why nothing does.

People paste command lines. A flag of SGLang's that asks for what is so anyway is taken, with a
note; any other one, and vLLM's, is refused with a line that says what to give instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class ForeignFlag(Exception):
    """A flag of another server that asks for what this one does not do; the text says more."""


@dataclass(frozen=True, slots=True)
class Hint:
    """What to answer to a group of flags.

    flags  their names; a last character * stands for any ending
    text   what replaces them, or why nothing does
    same   values with which they ask for what is so anyway; "" for a flag without a value
    """

    flags: str
    text: str
    same: tuple[str, ...] = ()


_TP = "GPUs of one host share a network with --tp-size only"
_ONE = ("1",)
_SWITCH = ("",)

HINTS = (
    Hint("--tensor-parallel-size", "give --tp-size", _ONE),
    Hint("--ep --ep-size --expert-parallel-size", _TP, _ONE),
    Hint("--pp --pp-size --pipeline-parallel-size", _TP, _ONE),
    Hint(
        "--data-parallel-size",
        "run several servers behind a router that reads /v1/loads or /metrics, or give"
        " --tp-size N --dp-size N --enable-dp-attention, or --tp-size N --dp-size auto",
        _ONE,
    ),
    Hint(
        "--enable-expert-parallel",
        "--tp-size N shares experts and attention, with --dp-size N --enable-dp-attention experts"
        " alone",
    ),
    Hint("--nnodes", "a server runs on one host", _ONE),
    Hint("--node-rank", "a server runs on one host", ("0",)),
    Hint("--dist-init-addr --nccl-init-addr --nccl-port", "a server runs on one host"),
    Hint("--attention-context-parallel-size --attn-cp-size", _TP, _ONE),
    Hint("--moe-data-parallel-size --moe-dp-size", _TP, _ONE),
    Hint(
        "--enable-dp-lm-head --enable-ep-moe --enable-deepep-moe --moe-a2a*"
        " --deepep-* --enable-eplb --eplb-* --moe-dense-tp-size"
        " --ep-num-redundant-experts --ep-dispatch-algorithm --init-expert-location --elastic-ep-*"
        " --enable-elastic-* --enable-deepep-* --expert-distribution-*"
        " --enable-expert-distribution-metrics --mooncake-* --enable-fused-grouped-gemm-combine",
        _TP,
    ),
    Hint(
        "--pp-max-micro-batch-size --pp-async-batch-depth --enable-two-batch-overlap"
        " --enable-single-batch-overlap --tbo-* --enable-dsa-prefill-context-parallel"
        " --enable-nsa-prefill-context-parallel --enable-attn-tp-input-scattered"
        " --enable-nccl-nvls --enable-symm-mem --enable-torch-symm-mem --enable-mscclpp"
        " --disable-custom-all-reduce --enable-p2p-check --enable-flashinfer-allreduce-fusion"
        " --enable-aiter-allreduce-fusion --distributed-executor-backend --dist-timeout --headless"
        " --data-parallel-rank --gpu-id-step --numa-node --kt-*",
        _TP,
    ),
    Hint(
        "--load-balance-method --load-watch-interval --prefill-round-robin-balance",
        "with --enable-dp-attention a request goes to the rank that has its prefix, or to the one"
        " with the least to compute",
    ),
    Hint("--model-impl", "the network is this server's own", ("auto", "sglang", "vllm")),
    Hint("--max-mamba-cache-size --mamba-* --dllm-*", "V4 has no such layers"),
    Hint(
        "--swap-space",
        "pools are on the device alone: see --mem-fraction-static and --kv-cache-bytes",
    ),
    Hint(
        "--swa-full-tokens-ratio",
        "windows are sized by the rows that run: see --max-running-requests,"
        " --resume-point-share and --swa-pages",
    ),
    Hint("--page-size --block-size", "a page has 256 tokens", ("256",)),
    Hint(
        "--disable-hybrid-swa-memory --hybrid-kvcache-ratio",
        "windows have pages of their own: see --swa-pages",
    ),
    Hint(
        "--prefix-caching-hash-algo --enable-session-cache",
        "what was there before is found by its tokens",
    ),
    Hint("--disable-chunked-prefix-cache", "--disable-radix-cache reuses nothing"),
    Hint("--num-gpu-blocks-override", "give --full-pages"),
    Hint(
        "--max-prefill-tokens --max-num-batched-tokens --prefill-max-requests"
        " --enable-dynamic-chunking --long-prefill-token-threshold",
        "--chunked-prefill-size bounds what a prefill step computes",
    ),
    Hint("--enable-prefill-delayer --prefill-delayer-*", "no prefill is delayed"),
    Hint("--num-continuous-decode-steps --scheduler-recv-interval", "each step is planned", _ONE),
    Hint("--num-reserved-decode-tokens", "nothing is reserved: who no longer fits comes back"),
    Hint("--async-scheduling", "it is on, on CUDA", _SWITCH),
    Hint("--no-async-scheduling", "give --disable-overlap-schedule"),
    Hint("--scheduling-policy", "give --schedule-policy"),
    Hint("--max-num-seqs --batch-size --max-batch-size", "give --max-running-requests"),
    Hint("--max-num-queued-reqs --max-num-queued-requests", "give --max-queued-requests"),
    Hint("--max-num-queued-tokens", "give --max-queued-tokens"),
    Hint("--max-model-len", "give --context-length"),
    Hint(
        "--schedule-conservativeness --new-token-ratio*",
        "none is needed: a request that no longer fits is retracted into the cache and comes back",
    ),
    Hint("--retraction-policy", "the newest request of the lowest priority is retracted"),
    Hint(
        "--enable-priority-scheduling", "`priority` of a request always counts, higher first",
        _SWITCH,
    ),
    Hint("--schedule-low-priority-values-first", "a higher `priority` goes first"),
    Hint(
        "--abort-on-priority-when-disabled --priority-scheduling-preemption-threshold",
        "`priority` of a request always counts: for who waits, and for who is retracted",
    ),
    Hint("--enable-prefix-caching --enable-chunked-prefill", "it is on", _SWITCH),
    Hint("--no-enable-prefix-caching", "give --disable-radix-cache"),
    Hint("--no-enable-chunked-prefill", "give --chunked-prefill-size -1"),
    Hint("--enable-mixed-chunk", "a step is prefill or decode"),
    Hint("--stream-interval", "every step's tokens are streamed", _ONE),
    Hint(
        "--incremental-streaming-output",
        "/generate streams the whole text so far, /v1/completions what is new",
    ),
    Hint(
        "--enable-tokenizer-batch-encode --disable-tokenizer-batch-decode"
        " --enable-dynamic-batch-tokenizer --dynamic-batch-tokenizer-*",
        "each prompt is tokenised by itself",
    ),
    Hint("--allow-auto-truncate", "a prompt that is too long is refused, never cut"),
    Hint("--multi-item-scoring-delimiter", "use /score"),
    Hint(
        "--max-logprobs --logprobs-mode",
        "a request may ask for 20 at each position, /generate for 128",
    ),
    Hint(
        "--enable-hierarchical-cache --hicache-* --enable-lmcache --cpu-offload-gb --kv-transfer-*"
        " --kv-offloading-* --hierarchical-sparse-attention-* --offload-*",
        "pages are kept in one memory only",
    ),
    Hint("--enable-metrics --enable-metrics-for-all-schedulers", "metrics are on", _SWITCH),
    Hint("--collect-tokens-histogram", "token histograms are on", _SWITCH),
    Hint(
        "--enable-mfu-metrics --tokenizer-metrics-* --gc-warning-threshold-secs"
        " --enable-server-load-tracking",
        "/metrics and /v1/loads have what there is",
    ),
    Hint(
        "--export-metrics-to-file --export-metrics-to-file-dir",
        "read /metrics; no request is written to disk",
    ),
    Hint("--bucket-* --prompt-tokens-buckets --generation-tokens-buckets", "buckets are fixed"),
    Hint(
        "--enable-cache-report --enable-prompt-tokens-details", "usage always tells cached_tokens",
        _SWITCH,
    ),
    Hint("--disable-log-stats", "give --log-level warning"),
    Hint(
        "--log-requests-level", "--log-requests logs sizes and outcomes, never text", ("0",)
    ),
    Hint("--log-requests-format", "give --log-format", ("text",)),
    Hint("--log-requests-target", "log lines go to stderr"),
    Hint("--max-log-len", "--log-requests logs sizes and outcomes, never text"),
    Hint("--enable-log-requests", "give --log-requests"),
    Hint("--disable-log-requests --no-enable-log-requests", "it is off", _SWITCH),
    Hint("--uvicorn-log-level", "give --log-level-http"),
    Hint("--disable-uvicorn-access-log", "give --log-level-http warning"),
    Hint("--disable-access-log-for-endpoints", "give --uvicorn-access-log-exclude-prefixes"),
    Hint("--show-time-cost --enable-request-time-stats-logging", "see the histograms at /metrics"),
    Hint(
        "--crash-dump-folder --debug-tensor-dump-* --msprobe-dump-config --file-storage-path",
        "nothing of a request is written to disk",
    ),
    Hint(
        "--enable-nan-detection --crash-on-nan",
        "logits that are not finite always fail their own request alone",
    ),
    Hint(
        "--enable-trace --trace-level --trace-module --collect-detailed-traces",
        "give --otlp-traces-endpoint: its traces have all details",
    ),
    Hint("--admin-api-key", "give --api-key-file with a key that has admin"),
    Hint("--skip-server-warmup --warmups", "no request is sent at start", _SWITCH),
    Hint("--sleep-on-idle", "an idle scheduler sleeps", _SWITCH),
    Hint("--soft-watchdog-timeout", "give --watchdog-timeout"),
    Hint("--shutdown-timeout", "give --drain-timeout"),
    Hint("--config", "there is no configuration file: give flags"),
    Hint(
        "--ssl-* --fastapi-root-path --root-path --allowed-origins --allowed-methods"
        " --allowed-headers --allow-credentials",
        "let a proxy in front do it",
    ),
    Hint("--disable-fastapi-docs", "with --api-key there are none"),
    Hint("--grpc-mode --smg-grpc-mode --grpc-port", "HTTP only"),
    Hint("--api-server-count --tokenizer-worker-num", "one process tokenises", _ONE),
    Hint("--tokenizer", "give --tokenizer-path"),
    Hint("--tokenizer-mode", "tokenizer.json is read", ("auto",)),
    Hint("--skip-tokenizer-init", "leave tokenizer.json out of the folder, and send input_ids"),
    Hint("--trust-remote-code", "code of a checkpoint is never run", _SWITCH),
    Hint(
        "--revision --download-dir --tokenizer-revision --hf-config-path --config-format",
        "--model-path is a folder: download into it first",
    ),
    Hint(
        "--model-loader-extra-config --custom-weight-loader --weight-loader-* --remote-instance-*"
        " --checkpoint-engine-* --model-checksum --decrypted-* --delete-ckpt-after-loading",
        "weights are the safetensors files in --model-path",
    ),
    Hint("--quantization --quantization-param-path", "config.json says it"),
    Hint(
        "--modelopt-* --quantize-and-serve --rl-quant-profile --torchao-config"
        " --enable-quant-communications --calculate-kv-scales",
        "weights are served as they are stored: config.json says how",
    ),
    Hint("--enable-fp32-lm-head", "give --dtype float32"),
    Hint(
        "--json-model-override-args --hf-overrides", "give --override-config key=value,key=value"
    ),
    Hint("--seed", "give --random-seed"),
    Hint("--is-embedding --task --runner", "text is generated, nothing else"),
    Hint("--weight-version", "weights do not change while a server runs"),
    Hint(
        "--hf-chat-template-name --completion-template --response-role"
        " --chat-template-content-format",
        "chats are written in V4's own format, or by the checkpoint's template",
    ),
    Hint("--default-chat-template-kwargs", "say it in chat_template_kwargs of a request"),
    Hint("--enable-auto-tool-choice", "it is on", _SWITCH),
    Hint("--grammar-backend --guided-decoding-backend", "xgrammar is used", ("xgrammar",)),
    Hint(
        "--structured-outputs-config --constrained-json-* --disable-outlines-disk-cache",
        "xgrammar is used; a request says more by regex, ebnf or structural_tag",
    ),
    Hint(
        "--preferred-sampling-params --override-generation-config",
        "what a request leaves out is as the checkpoint's generation_config.json says",
    ),
    Hint("--generation-config", "use --sampling-defaults model or openai", ("auto",)),
    Hint(
        "--attention-backend --prefill-attention-backend --decode-attention-backend"
        " --sampling-backend --moe-runner-backend --fp8-gemm-backend --fp4-gemm-backend --nsa-*"
        " --dsa-* --flashinfer-* --enable-flashinfer-* --disable-flashinfer-*"
        " --triton-attention-* --enable-triton-kernel-moe --disable-shared-experts-fusion"
        " --enable-fused-qk-norm-rope --disable-cascade-attn",
        "backends are chosen at start and told by /server_info; KERNEL_<OP>=NAME forces one",
    ),
    Hint(
        "--disable-piecewise-cuda-graph --disable-prefill-cuda-graph",
        "only decode steps are CUDA graphs", _SWITCH,
    ),
    Hint(
        "--piecewise-cuda-graph-* --enforce-piecewise-cuda-graph --compilation-config",
        "only decode steps are CUDA graphs: see --cuda-graph-bs",
    ),
    Hint(
        "--cuda-graph-max-bs --cuda-graph-sizes --cuda-graph-capture-sizes"
        " --disable-cuda-graph-padding",
        "give --cuda-graph-bs: a step takes the smallest graph that holds its rows",
    ),
    Hint(
        "--enable-profile-cuda-graph --enable-cudagraph-gc --cuda-graph-backend",
        "see --cuda-graph-bs and --disable-cuda-graph",
    ),
    Hint(
        "--enable-torch-compile --enable-torch-compile-* --torch-compile-*",
        "nothing is compiled by torch",
    ),
    Hint(
        "--enable-layerwise-nvtx-marker --profiler-config",
        "give --profile-dir FOLDER, and use /start_profile",
    ),
    Hint(
        "--speculative-* --enable-multi-layer-eagle --num-lookahead-slots",
        "there is no draft decoding",
    ),
    Hint(
        "--enable-lora --enable-lora-* --lora-* --max-lora* --max-loaded-loras",
        "there are no adapters",
    ),
    Hint(
        "--disaggregation-* --enable-pdmux --pdmux-config-path --sm-group-num",
        "prefill and decode run in one server",
    ),
    Hint(
        "--enable-multimodal --mm-* --limit-mm-* --enable-mm-global-cache --enable-prefix-mm-cache"
        " --enable-broadcast-mm-inputs-process --keep-mm-feature-on-device --encoder-*"
        " --language-only --disable-fast-image-processor"
        " --enable-precise-embedding-interpolation",
        "V4 reads text only",
    ),
    Hint("--enable-custom-logit-processor", "code of a client is never run"),
    Hint(
        "--forward-hooks --middleware --custom-sigquit-handler --rl-on-policy-target",
        "code of others is never run in the server",
    ),
    Hint("--tool-server", "tools are run by clients"),
    Hint(
        "--enable-return-hidden-states --enable-return-routed-experts",
        "hidden states do not leave the engine",
    ),
    Hint(
        "--enable-memory-saver --enable-sleep-mode --enable-weights-cpu-backup"
        " --enable-draft-weights-cpu-backup",
        "memory is not given back while a server runs",
    ),
)  # fmt: skip


def take_out(argv: Sequence[str], known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return `argv` without the foreign flags that change nothing, and a note on each.

    known  our own flags, which are never foreign
    Raises ForeignFlag for a foreign flag that asks for something else.
    """
    kept: list[str] = []
    notes: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        hint = None if name in known else find(name)
        if hint is None:
            kept.append(word)
            continue
        values = [value] if equals else []
        while not equals and words and not words[0].startswith("-"):
            values.append(words.pop(0))
        if " ".join(values) not in hint.same:
            raise ForeignFlag(f"{word} is not a flag of this server: {hint.text}")
        notes.append(f"{' '.join([name, *values])}: {hint.text}")
    return kept, notes


def in_our_words(argv: Sequence[str]) -> list[str]:
    """Return `argv` with what vLLM calls data-parallel attention in the words of this server.

    `--data-parallel-size N --enable-expert-parallel` is N ranks there; without the second flag,
    or with `--tp-size`, nothing is changed. `--data-parallel-size auto` is `--dp-size auto`; ranks
    share experts in any case. Raises ForeignFlag where N is missing.
    """
    size, experts = "--data-parallel-size", "--enable-expert-parallel"
    words = [part for word in argv for part in _split(word, size)]
    if size in words and words[words.index(size) + 1 :][:1] == ["auto"]:
        words[words.index(size)] = "--dp-size"
        return [word for word in words if word != experts]
    if experts not in words or size not in words or {"--tp", "--tp-size"} & _names(words):
        return list(argv)
    at = words.index(size)
    if at + 1 == len(words) or words[at + 1].startswith("-"):
        raise ForeignFlag(f"{size} needs a number")
    ranks = words[at + 1]
    del words[at : at + 2]
    words.remove(experts)
    if ranks == "1":
        return words
    return [*words, "--tp-size", ranks, "--dp-size", ranks, "--enable-dp-attention"]


def _split(word: str, flag: str) -> list[str]:
    """Return a flag and its value, if they are one word."""
    name, equals, value = word.partition("=")
    return [name, value] if equals and name == flag else [word]


def _names(words: Sequence[str]) -> set[str]:
    return {word.partition("=")[0] for word in words}


def find(name: str) -> Hint | None:
    """Return the hint on a flag, None where there is none."""
    spelled = name.replace("_", "-")
    for hint in HINTS:
        if spelled in hint.flags.split():
            return hint
    for hint in HINTS:
        for pattern in hint.flags.split():
            if pattern.endswith("*") and spelled.startswith(pattern[:-1]):
                return hint
    return None
