"""Flags of other servers are taken where they change nothing, and else refused with a hint."""

from dataclasses import fields

import pytest

from runtime.config import ServerConfig, build_parser
from runtime.flag_hints import HINTS, ForeignFlag, find, take_out

OURS = [word for action in build_parser()._actions for word in action.option_strings]
# What people type for SGLang, besides what is a flag here.
_TYPED = """
--tp-size --tp --dp-size --dp --ep-size --enable-dp-attention --nnodes --node-rank
--dist-init-addr --mem-fraction-static --max-prefill-tokens --schedule-conservativeness
--retraction-policy --page-size --swa-full-tokens-ratio --admin-api-key --enable-metrics
--enable-cache-report --log-requests-level --soft-watchdog-timeout --cuda-graph-max-bs
--disable-cuda-graph --speculative-algorithm --speculative-num-draft-tokens --grammar-backend
--reasoning-parser --tool-call-parser --enable-trace --otlp-traces-endpoint --crash-dump-folder
--sleep-on-idle --skip-server-warmup --stream-interval --config --trust-remote-code
--attention-backend --moe-runner-backend --json-model-override-args --chat-template
--enable-hierarchical-cache --disaggregation-mode --lora-paths --quantization --device
--revision --enable-mixed-chunk --tensor-parallel-size --max-model-len --gpu-memory-utilization
--max-num-seqs --max-num-batched-tokens --enable-prefix-caching --max-num-queued-reqs --seed
--hf-overrides
"""
TYPED = _TYPED.split()
_KNOWN = """
--model-path --tokenizer-path --host --port --context-length --max-running-requests
--max-queued-requests --max-total-tokens --chunked-prefill-size --schedule-policy
--disable-radix-cache --radix-eviction-policy --load-format --served-model-name --api-key
--log-level --log-level-http --uvicorn-access-log-exclude-prefixes --log-requests
--decode-log-interval --watchdog-timeout --random-seed --kv-events-config --dtype
--kv-cache-dtype
"""
KNOWN = _KNOWN.split()


def test_every_flag_that_people_type_is_ours_or_has_a_hint() -> None:
    assert set(KNOWN) <= set(OURS)
    assert [flag for flag in TYPED if flag in OURS or find(flag) is None] == []


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
    kept, notes = take_out(["--port", "1", "--tp=1", "--enable-metrics", "--dp-size", "1"], OURS)

    assert kept == ["--port", "1"]
    assert [note.partition(":")[0] for note in notes] == [
        "--tp 1", "--enable-metrics", "--dp-size 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "argv",
    [
        ["--tp", "2"],
        ["--tp"],
        ["--tp_size", "8"],
        ["--enable-metrics", "yes"],
        ["--speculative-algorithm", "EAGLE"],
        ["--cuda-graph-bs", "1", "2", "4"],
        ["--uvicorn-access-log-exclude-prefixes", "/health", "--max-model-len=4096"],
    ],
    ids=" ".join,
)
def test_what_is_not_so_is_refused(argv: list[str]) -> None:
    with pytest.raises(ForeignFlag, match="is not a flag of this server: "):
        take_out(argv, OURS)


def test_unknown_words_are_left_to_the_parser() -> None:
    assert take_out(["--nonsense", "serve", "-1"], OURS) == (["--nonsense", "serve", "-1"], [])
