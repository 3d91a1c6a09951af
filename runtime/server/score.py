"""Scores: how likely a prompt is to go on with each of some choices. What `/score` says."""

import uuid
from typing import Any

import msgspec

from runtime.errors import BadRequest
from runtime.server.native_schema import check_priority
from runtime.server.prompt import Prompt, PromptIds, Prompts
from runtime.server.score_plan import plan_score
from runtime.server.score_run import Ids, ScoreRun
from runtime.server.service import Service
from runtime.server.tokenize import MAX_CHARS

MAX_CHOICES = 256


class ScoreBody(msgspec.Struct, frozen=True, kw_only=True):
    """`/score`: a prompt in one of three forms, and how it may go on.

    unconditional  also say how likely each choice is by itself
    """

    choices: list[str | list[int]]
    text: str | None = None
    input_ids: list[int] | None = None
    prompt_parts: Prompt | None = None
    unconditional: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None


class Scores:
    """Scores choices."""

    def __init__(self, service: Service, prompts: Prompts) -> None:
        self._service = service
        self._prompts = prompts

    async def score(self, body: ScoreBody) -> dict[str, Any]:
        """Return the log-probabilities of each choice. Raises RequestError."""
        chars = self._check_choices(body.choices)
        manager = self._service.manager
        with manager.under_way() as bundle:
            prompt = await self._prompt(body)
            plan = await manager.in_thread(
                lambda: plan_score(manager.tokenizer, prompt, list(body.choices)), chars=chars
            )
            run = ScoreRun(
                manager,
                bundle,
                namespace=self._service.namespaces.of(body.cache_salt, body.extra_key),
                priority=check_priority(body.priority),
                boundaries=prompt.boundaries,
            )
            values = await run.conditional(plan)
            alone = await run.unconditional(plan) if body.unconditional else None
        return {
            "choices": [self._row(ids, values, alone) for ids in plan.choices],
            "meta_info": {
                "id": uuid.uuid4().hex,
                "prompt_tokens": len(prompt.ids),
                "scored_from": len(plan.prefix),
                "cached_tokens": run.cached_tokens,
                "computed_tokens": run.computed_tokens,
            },
        }

    def _check_choices(self, choices: list[str | list[int]]) -> int:
        """Return the characters of all texts. Raises BadRequest for what others would wait for."""
        if not 1 <= len(choices) <= MAX_CHOICES:
            raise BadRequest(f"there must be 1 to {MAX_CHOICES} choices", param="choices")
        chars = sum(len(choice) for choice in choices if isinstance(choice, str))
        most = max(MAX_CHARS, 16 * self._service.context_tokens)
        if chars > most and not self._service.trusted:
            raise BadRequest(
                f"choices may have {most} characters in all, got {chars}", param="choices"
            )
        for choice in choices:
            if not isinstance(choice, str) and choice:
                self._service.check_token_ids(choice, param="choices")
        return chars

    async def _prompt(self, body: ScoreBody) -> PromptIds:
        given = [body.text is not None, body.input_ids is not None, body.prompt_parts is not None]
        if sum(given) != 1:
            raise BadRequest("give exactly one of text, input_ids and prompt_parts", param="text")
        if body.prompt_parts is not None:
            return await self._prompts.encode(body.prompt_parts)
        only = body.text if body.text is not None else body.input_ids
        assert only is not None
        return await self._prompts.encode_segments([only])

    def _row(
        self, ids: Ids, values: "dict[Ids, float]", alone: "dict[Ids, list[float]] | None"
    ) -> dict[str, Any]:
        speller = self._service.speller
        logprobs = [values[ids[: k + 1]] for k in range(len(ids))]
        row: dict[str, Any] = {
            "token_ids": list(ids),
            "token_texts": [speller.text(token_id) for token_id in ids],
            "logprobs": logprobs,
            "normalized_logprob": sum(logprobs) / len(logprobs),
        }
        if alone is not None:
            row["unconditional_logprobs"] = [None, *alone[ids]]
        return row
