"""The native dialect as the language speaks it: fields of a request, and what replies mean.

A server and an engine in this process are asked alike, and answer alike.
"""

from typing import Any

from runtime.errors import Aborted, RequestFailed
from runtime.lang.backend import Generation
from runtime.lang.choices import ChoiceScore
from runtime.lang.prompt import Prompt, Written
from runtime.lang.sampling import Sampling


def prompt_fields(prompt: Prompt) -> dict[str, Any]:
    """Return the fields that say the prompt."""
    if prompt.turns:
        continues = bool(prompt.begun) or prompt.unfinished
        messages = [{"role": turn.role, "content": turn.content} for turn in prompt.turns]
        parts: dict[str, Any] = {
            "messages": messages,
            "continue_final_message": continues,
            "add_generation_prompt": prompt.open and not continues,
            # A program says itself what is thought and what is answered.
            "chat_template_kwargs": {"thinking": False},
        }
        if prompt.shared:
            parts["shared"] = [{"message": p.turn, "chars": p.chars} for p in prompt.shared]
        if prompt.between:
            parts["between"] = [
                {"after": text.after, "segment": _segment(text.piece)} for text in prompt.between
            ]
        written = [
            {"message": at, "segments": [_segment(piece) for piece in turn.pieces if piece]}
            for at, turn in enumerate(prompt.turns)
            if turn.pieces
        ]
        if written:
            parts["written"] = written
        return {"prompt_parts": parts}
    if prompt.shared:
        shared = [{"chars": place.chars} for place in prompt.shared]
        return {"prompt_parts": {"segments": [prompt.text], "shared": shared}}
    if not any(isinstance(piece, Written) for piece in prompt.pieces):
        return {"text": prompt.text}
    return {"prompt_parts": {"segments": [_segment(piece) for piece in prompt.pieces]}}


def _segment(piece: str | Written) -> str | tuple[int, ...] | dict[str, Any]:
    if not isinstance(piece, Written):
        return piece
    return {"text": piece.text, "ids": piece.token_ids} if piece.is_cut else piece.token_ids


def generate_fields(prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
    """Return the fields of `/generate`."""
    return {**prompt_fields(prompt), "sampling_params": sampling.native(), **sampling.reporting()}


def generation(reply: dict[str, Any]) -> Generation:
    """Return what a reply of `/generate` says was written. Raises Aborted where it was cut off.

    Raises RequestFailed for a reply of another form.
    """
    check_reply(reply, "text", "meta_info", "output_ids")
    meta, ids = reply["meta_info"], reply["output_ids"]
    finish: dict[str, Any] = meta.get("finish_reason") or {}
    if finish.get("type") == "abort":
        raise Aborted(finish.get("message") or "the request was aborted")
    matched = finish.get("matched")
    if isinstance(matched, str):
        return Generation(reply["text"], tuple(ids), meta, is_cut=True)
    if ids and matched == ids[-1]:
        ids = ids[:-1]
    return Generation(reply["text"], tuple(ids), meta)


def score(choices: tuple[str, ...], reply: Any) -> tuple[list[ChoiceScore], dict[str, Any]]:
    """Return the scores in a reply of `/score`, and its facts.

    Raises RequestFailed for a reply of another form.
    """
    check_reply(reply, "choices", "meta_info")
    rows = zip(choices, reply["choices"], strict=True)
    return [choice_score(text, row) for text, row in rows], reply["meta_info"]


def check_reply(reply: Any, *names: str) -> None:
    """Raise RequestFailed for a reply that lacks one of these fields."""
    missing = [name for name in names if not isinstance(reply, dict) or name not in reply]
    if missing:
        raise RequestFailed(f"the reply has no {missing[0]}: {reply!s:.200}")


def choice_score(text: str, row: dict[str, Any]) -> ChoiceScore:
    """Return what a row of `/score`'s reply says of the choice `text`."""
    alone = row.get("unconditional_logprobs")
    return ChoiceScore(
        text,
        tuple(row["token_ids"]),
        tuple(row["token_texts"]),
        tuple(row["logprobs"]),
        None if alone is None else tuple(alone),
    )
