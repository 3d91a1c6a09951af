"""Reads a reference checkpoint's outputs and holds a server's replies against them.

What is excused, and nothing else: a greedy token may differ where the reference's own two best
logits were closer than `TOKEN_MARGIN`; and a prompt in which some discrete choice inside the
network (router, indexer) was closer than `CHOICE_GAP` may go either way from there on.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

TOKEN_MARGIN = 1e-3
CHOICE_GAP = 1e-5
LOGPROB_BOUND = 2e-4


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt and its reference.

    ids           prompt tokens
    greedy        32 tokens that follow
    margin        per greedy token, gap between the two best logits
    positions     [n] prompt positions with recorded logits
    logprobs      [n, vocab] float64, log-softmax of those logits
    step_logprobs [32, vocab] float64, of the logits that chose each greedy token
    close_choice  some choice inside the network was closer than CHOICE_GAP
    """

    ids: list[int]
    greedy: list[int]
    margin: list[float]
    positions: list[int]
    logprobs: np.ndarray
    step_logprobs: np.ndarray
    close_choice: bool


def checkpoint(oracle: Path, name: str) -> Path:
    """Return the folder of a reference checkpoint; skip the test, and say how to make it, if it
    is not there.
    """
    if not (oracle / name / "model.safetensors").is_file():
        made_by = f"make_oracle.py --seed 0 --only {name.removesuffix('_fp8')} --out DIR"
        pytest.skip(f"no {name} in {oracle.name}: `python {made_by}`, then UMBRA_ORACLE=DIR")
    return oracle / name


def load_cases(folder: Path, *, max_len: int) -> list[Case]:
    """Return the reference prompts of at most `max_len` tokens."""
    reference = json.loads((folder / "ref.json").read_text(encoding="utf-8"))
    arrays = load_file(folder / "ref.safetensors")
    cases: list[Case] = []
    for number, prompt in enumerate(reference["prompts"]):
        if prompt["len"] > max_len:
            continue
        gaps = [prompt["choice_margins"][f"{name}_min"] for name in ("router", "indexer")]
        cases.append(
            Case(
                ids=prompt["ids"],
                greedy=prompt["greedy"],
                margin=prompt["margin"],
                positions=arrays[f"p{number}.positions"].tolist(),
                logprobs=_log_softmax(arrays[f"p{number}.logits"]),
                step_logprobs=_log_softmax(arrays[f"p{number}.step_logits"]),
                close_choice=any(gap is not None and gap <= CHOICE_GAP for gap in gaps),
            )
        )
    return cases


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def compare_tokens(case: Case, got: list[int], what: str) -> int:
    """Fail where `got` leaves the greedy tokens without an excuse; return how many agree."""
    assert len(got) == len(case.greedy), f"{what}: {len(got)} tokens, want {len(case.greedy)}"
    for step, (have, want) in enumerate(zip(got, case.greedy, strict=True)):
        if have != want:
            excused = case.close_choice or case.margin[step] < TOKEN_MARGIN
            assert excused, (
                f"{what}: token {step} is {have}, want {want} (margin {case.margin[step]:.4f})"
            )
            return step
    return len(got)


def compare_prompt_logprobs(case: Case, meta: dict[str, Any], what: str) -> None:
    """Fail unless the reported alternatives are the reference's best, within the bound.

    The entry at p + 1 is the distribution after position p; the last position's is that of the
    first output token.
    """
    reported = meta["input_top_logprobs"]
    assert len(reported) == len(case.ids), f"{what}: {len(reported)} entries"
    assert not reported[0], f"{what}: the first token has no distribution before it"
    after = [*reported[1:], meta["output_top_logprobs"][0]]
    for position, want in zip(case.positions, case.logprobs, strict=True):
        if not case.close_choice:
            _compare_top(after[position], want, f"{what}, position {position}")


def compare_output_logprobs(case: Case, meta: dict[str, Any], agreeing: int, what: str) -> None:
    """Hold the alternatives of the output tokens, as far as the tokens before them agree."""
    steps = zip(meta["output_top_logprobs"], case.step_logprobs, strict=True)
    for step, (entries, want) in enumerate(steps):
        if step > agreeing or case.close_choice:
            break
        _compare_top(entries, want, f"{what}, output {step}")


def _compare_top(entries: list[list[Any]], want: np.ndarray, what: str) -> None:
    assert entries, f"{what}: no alternatives"
    best = np.sort(want)[::-1][: len(entries)]
    for rank, (logprob, token, _) in enumerate(entries):
        error = abs(logprob - want[token])
        assert error <= LOGPROB_BOUND, f"{what}: token {token} is off by {error:.2e}"
        assert want[token] >= best[rank] - 2 * LOGPROB_BOUND, (
            f"{what}: token {token} is not among the {len(entries)} best"
        )
