"""Flags of other servers are taken where they change nothing, and else refused with a hint."""

from dataclasses import fields

import pytest

from runtime.command_line import build_parser
from runtime.config import ServerConfig
from runtime.flag_hints import HINTS, ForeignFlag, find, in_our_words, take_out

OURS = [word for action in build_parser()._actions for word in action.option_strings]
# What people type for SGLang, besides what is a flag here.
_TYPED = """
--ep-size --nnodes --node-rank
--dist-init-addr --max-prefill-tokens --schedule-conservativeness
--retraction-policy --page-size --swa-full-tokens-ratio --admin-api-key --enable-metrics
--enable-cache-report --log-requests-level --soft-watchdog-timeout --cuda-graph-max-bs
--speculative-algorithm --speculative-num-draft-tokens --grammar-backend
--enable-trace --collect-detailed-traces --crash-dump-folder
--sleep-on-idle --skip-server-warmup --stream-interval --config --trust-remote-code
--attention-backend --moe-runner-backend --json-model-override-args
--enable-hierarchical-cache --disaggregation-mode --lora-paths --quantization
--revision --enable-mixed-chunk --tensor-parallel-size --max-model-len
--max-num-seqs --max-num-batched-tokens --enable-prefix-caching --max-num-queued-reqs --seed
--hf-overrides
"""
TYPED = _TYPED.split()
# Source: the pages on server arguments of SGLang's documentation, and of vLLM's.
_DOCUMENTED = """
--tokenizer-mode --tokenizer-worker-num --skip-tokenizer-init --model-loader-extra-config
--is-embedding --enable-multimodal --model-impl --fastapi-root-path --grpc-mode --warmups
--nccl-port --checkpoint-engine-wait-weights-before-ready --quantization-param-path
--enable-fp32-lm-head --modelopt-quant --modelopt-checkpoint-restore-path
--modelopt-checkpoint-save-path --modelopt-export-path --quantize-and-serve --rl-quant-profile
--enable-quant-communications --prefill-max-requests --enable-dynamic-chunking
--enable-priority-scheduling --abort-on-priority-when-disabled
--schedule-low-priority-values-first --priority-scheduling-preemption-threshold
--disable-hybrid-swa-memory --enable-prefill-delayer --prefill-delayer-max-delay-passes
--prefill-delayer-token-usage-low-watermark --prefill-delayer-queue-min-ratio
--prefill-delayer-max-delay-ms --prefill-delayer-forward-passes-buckets
--prefill-delayer-wait-seconds-buckets --pipeline-parallel-size --pp-size
--attention-context-parallel-size --attn-cp-size --moe-data-parallel-size --moe-dp-size
--pp-max-micro-batch-size --pp-async-batch-depth --incremental-streaming-output
--constrained-json-whitespace-pattern --constrained-json-disable-any-whitespace --dist-timeout
--download-dir --model-checksum --gpu-id-step --custom-sigquit-handler
--log-requests-format --log-requests-target --show-time-cost --enable-mfu-metrics
--enable-metrics-for-all-schedulers --tokenizer-metrics-custom-labels-header
--tokenizer-metrics-allowed-custom-labels --bucket-time-to-first-token
--bucket-inter-token-latency --bucket-e2e-request-latency --collect-tokens-histogram
--prompt-tokens-buckets --generation-tokens-buckets --gc-warning-threshold-secs
--enable-request-time-stats-logging --export-metrics-to-file --export-metrics-to-file-dir
--weight-version --hf-chat-template-name --completion-template --file-storage-path --tool-server
--data-parallel-size --load-balance-method --nccl-init-addr
--preferred-sampling-params --enable-lora --enable-lora-overlap-loading --max-lora-rank
--lora-target-modules --max-loras-per-batch --max-loaded-loras --lora-eviction-policy
--lora-backend --max-lora-chunk-size --lora-drain-wait-threshold --prefill-attention-backend
--decode-attention-backend --sampling-backend --mm-attention-backend --dsa-prefill-backend
--dsa-decode-backend --fp8-gemm-backend --fp4-gemm-backend --disable-flashinfer-autotune
--speculative-draft-model-path --speculative-draft-model --speculative-num-steps
--speculative-eagle-topk --speculative-ngram-capacity --enable-multi-layer-eagle
--expert-parallel-size --ep --moe-a2a-backend --flashinfer-mxfp4-moe-precision
--enable-flashinfer-allreduce-fusion --enable-aiter-allreduce-fusion --deepep-mode
--deepep-dispatcher-output-dtype --enable-fused-grouped-gemm-combine --ep-num-redundant-experts
--ep-dispatch-algorithm --init-expert-location --enable-eplb --eplb-algorithm
--expert-distribution-recorder-mode --expert-distribution-recorder-buffer-size
--enable-expert-distribution-metrics --deepep-config --moe-dense-tp-size --elastic-ep-backend
--enable-elastic-expert-backup --mooncake-ib-device --enable-deepep-waterfill --elastic-ep-rejoin
--max-mamba-cache-size --mamba-ssm-dtype --mamba-full-memory-ratio --mamba-scheduler-strategy
--mamba-track-interval --hicache-ratio --hicache-size --hicache-write-policy --hicache-io-backend
--hicache-mem-layout --hicache-storage-backend --hierarchical-sparse-attention-extra-config
--enable-lmcache --kt-weight-path --kt-method --kt-cpuinfer --kt-threadpool-count
--kt-num-gpu-experts --dllm-algorithm --dllm-algorithm-config --cpu-offload-gb
--offload-group-size --offload-num-in-group --offload-prefetch-step --offload-mode
--multi-item-scoring-delimiter --disable-cuda-graph-padding
--enable-profile-cuda-graph --enable-cudagraph-gc --enable-layerwise-nvtx-marker
--enable-nccl-nvls --enable-symm-mem --disable-flashinfer-cutlass-moe-fp4-allgather
--enable-tokenizer-batch-encode --disable-tokenizer-batch-decode --disable-outlines-disk-cache
--disable-custom-all-reduce --enable-mscclpp --enable-torch-symm-mem
--enable-dp-lm-head --enable-two-batch-overlap --enable-single-batch-overlap
--tbo-token-distribution-threshold --enable-torch-compile --enable-torch-compile-debug-mode
--disable-piecewise-cuda-graph --enforce-piecewise-cuda-graph --piecewise-cuda-graph-tokens
--piecewise-cuda-graph-compiler --torch-compile-max-bs --piecewise-cuda-graph-max-tokens
--torchao-config --enable-nan-detection --enable-p2p-check --triton-attention-reduce-in-fp32
--triton-attention-num-kv-splits --triton-attention-split-tile-size --num-continuous-decode-steps
--delete-ckpt-after-loading --enable-memory-saver --enable-weights-cpu-backup
--enable-draft-weights-cpu-backup --allow-auto-truncate --enable-custom-logit-processor
--flashinfer-mla-disable-ragged --disable-shared-experts-fusion --disable-chunked-prefix-cache
--disable-fast-image-processor --keep-mm-feature-on-device --enable-return-hidden-states
--enable-return-routed-experts --scheduler-recv-interval --numa-node
--rl-on-policy-target --enable-attn-tp-input-scattered
--enable-dsa-prefill-context-parallel --enable-nsa-prefill-context-parallel --dsa-prefill-cp-mode
--enable-fused-qk-norm-rope --enable-precise-embedding-interpolation
--enable-dynamic-batch-tokenizer --dynamic-batch-tokenizer-batch-size
--dynamic-batch-tokenizer-batch-timeout --debug-tensor-dump-output-folder
--debug-tensor-dump-layers --debug-tensor-dump-input-file --debug-tensor-dump-inject
--disaggregation-transfer-backend --disaggregation-bootstrap-port --disaggregation-ib-device
--num-reserved-decode-tokens --disaggregation-decode-polling-interval --encoder-only
--language-only --encoder-transfer-backend --encoder-urls --custom-weight-loader
--weight-loader-disable-mmap --weight-loader-prefetch-checkpoints
--weight-loader-prefetch-num-threads --remote-instance-weight-loader-seed-instance-ip
--remote-instance-weight-loader-backend --enable-pdmux --pdmux-config-path --sm-group-num
--mm-max-concurrent-calls --mm-per-request-timeout --enable-broadcast-mm-inputs-process
--mm-process-config --mm-enable-dp-encoder --limit-mm-data-per-request --enable-mm-global-cache
--decrypted-config-file --decrypted-draft-config-file --enable-prefix-mm-cache --forward-hooks
--msprobe-dump-config --enable-ep-moe --enable-deepep-moe --prefill-round-robin-balance
--enable-flashinfer-cutlass-moe --enable-flashinfer-trtllm-moe --enable-triton-kernel-moe
--crash-on-nan --hybrid-kvcache-ratio --load-watch-interval --nsa-prefill --nsa-decode
--enable-session-cache --block-size --enable-auto-tool-choice --swap-space
--tokenizer --disable-log-requests --guided-decoding-backend --structured-outputs-config
--compilation-config --chat-template-content-format --allowed-origins --middleware --response-role
--async-scheduling --scheduling-policy --hf-config-path
--generation-config --override-generation-config --max-logprobs --logprobs-mode
--disable-cascade-attn --enable-prompt-tokens-details --max-log-len --uvicorn-log-level
--allow-credentials --disable-fastapi-docs --enable-server-load-tracking
--no-enable-prefix-caching --calculate-kv-scales --data-parallel-rank
--distributed-executor-backend --api-server-count --headless --long-prefill-token-threshold
--num-lookahead-slots --prefix-caching-hash-algo --enable-sleep-mode --config-format
--tokenizer-revision --limit-mm-per-prompt
"""
DOCUMENTED = _DOCUMENTED.split()
_KNOWN = """
--model-path --tokenizer-path --host --port --context-length --max-running-requests
--max-queued-requests --max-total-tokens --chunked-prefill-size --schedule-policy
--disable-radix-cache --radix-eviction-policy --load-format --served-model-name --api-key
--log-level --log-level-http --uvicorn-access-log-exclude-prefixes --log-requests
--decode-log-interval --watchdog-timeout --random-seed --kv-events-config --dtype
--kv-cache-dtype --sampling-defaults --mem-fraction-static --gpu-memory-utilization --device
--disable-cuda-graph --enforce-eager --cuda-graph-bs --disable-overlap-schedule
--chat-template --tool-call-parser --reasoning-parser
--kv-cache-memory-bytes --enable-deterministic-inference --dp-size --dp --enable-dp-attention
"""
KNOWN = _KNOWN.split()


def test_every_flag_that_people_type_is_ours_or_has_a_hint() -> None:
    assert set(KNOWN) <= set(OURS)
    assert [flag for flag in TYPED if flag in OURS or find(flag) is None] == []
    assert [flag for flag in DOCUMENTED if flag in OURS or find(flag) is None] == []


def test_no_hint_is_given_on_a_flag_of_ours() -> None:
    assert [flag for flag in OURS if find(flag) is not None] == []


def test_a_hint_names_only_flags_that_exist() -> None:
    named = {
        word.strip(",.:").partition("=")[0]
        for hint in HINTS
        for word in hint.text.split()
        if word.startswith("--")
    }

    assert named
    assert named <= {"--" + item.name.replace("_", "-") for item in fields(ServerConfig)}


def test_no_flag_has_two_hints() -> None:
    flags = [flag for hint in HINTS for flag in hint.flags.split()]

    assert len(flags) == len(set(flags))


def test_what_is_so_anyway_is_taken_out_with_a_note() -> None:
    kept, notes = take_out(["--port", "1", "--ep=1", "--enable-metrics", "--pp-size", "1"], OURS)

    assert kept == ["--port", "1"]
    assert [note.partition(":")[0] for note in notes] == [
        "--ep 1", "--enable-metrics", "--pp-size 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "argv",
    [
        ["--ep", "2"],
        ["--ep"],
        ["--ep_size", "8"],
        ["--enable-metrics", "yes"],
        ["--speculative-algorithm", "EAGLE"],
        ["--cuda-graph-max-bs", "1", "2", "4"],
        ["--uvicorn-access-log-exclude-prefixes", "/health", "--max-model-len=4096"],
    ],
    ids=" ".join,
)
def test_what_is_not_so_is_refused(argv: list[str]) -> None:
    with pytest.raises(ForeignFlag, match="is not a flag of this server: "):
        take_out(argv, OURS)


@pytest.mark.parametrize(
    "line",
    [
        "--data-parallel-size 4 --port 5 --enable-expert-parallel",
        "--port 5 --enable-expert-parallel --data-parallel-size=4",
    ],
)
def test_vllms_words_for_data_parallel_attention_are_taken(line: str) -> None:
    ours = ["--port", "5", "--tp-size", "4", "--dp-size", "4", "--enable-dp-attention"]

    assert in_our_words(line.split()) == ours


@pytest.mark.parametrize(
    "line",
    [
        "--data-parallel-size 4",
        "--enable-expert-parallel",
        "--tp-size 4 --enable-expert-parallel",
        "--tp 4 --data-parallel-size 4 --enable-expert-parallel",
    ],
)
def test_words_that_say_less_are_left_as_they_are_and_refused(line: str) -> None:
    assert in_our_words(line.split()) == line.split()
    with pytest.raises(ForeignFlag, match="--dp-size N"):
        take_out(line.split(), OURS)


def test_a_size_without_a_number_is_refused() -> None:
    with pytest.raises(ForeignFlag, match="needs a number"):
        in_our_words(["--data-parallel-size", "--enable-expert-parallel"])


def test_one_replica_is_what_there_is_anyway() -> None:
    assert in_our_words(["--enable-expert-parallel", "--data-parallel-size", "1"]) == []


def test_unknown_words_are_left_to_the_parser() -> None:
    assert take_out(["--nonsense", "serve", "-1"], OURS) == (["--nonsense", "serve", "-1"], [])
