"""Chats of models that think: what the next turn finds in the cache, and that it changes nothing.

Templates leave the reasoning of earlier turns out, so that the next prompt parts from what was
computed where the answer begins. Up to there it is found to the token; what it says behind that is
prefilled ahead, while the user reads (`runtime/server/next_turn.py`).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.pools import wait_idle
from tests.runtime.chat.families import end_id
from tests.testing import gpt_oss_checkpoints, gqa_checkpoints, mla_checkpoints
from tests.testing.chat_checkpoints import FAMILY_OF, answer_fields, write_chat_tokenizer
from tests.testing.server_process import ServerProcess, running_server

Json = dict[str, Any]
NETWORKS: dict[str, Callable[..., Any]] = {
    "qwen3": lambda **fields: gqa_checkpoints.reference("qwen3", **fields),
    "r1": lambda **fields: mla_checkpoints.reference("v3", **fields),
    "gpt_oss": lambda **fields: gpt_oss_checkpoints.reference(
        "wide", max_position_embeddings=4096, **fields
    ),
}
# With windows only prompts' ends are resume points: the first mark of the answer is not found.
LOST = {"gpt_oss": 1}
DEADLINE_S = 20.0
SYSTEM = "Answer in one line, and keep to what the house book says. " * 3
ASKED = ("Who lives in the old house?", "Since when?", "Is the window open now?")


@contextmanager
def served(name: str, folder: Path, *flags: str) -> Iterator[ServerProcess]:
    """Serve a random checkpoint that chats as a model does."""
    model = NETWORKS[name](eos_token_id=end_id(FAMILY_OF[name]))
    write_chat_tokenizer(name, gqa_checkpoints.write(model, folder))
    pools = ("--full-pages", "64", "--chunked-prefill-size", "96")
    with running_server(
        "--model-path", str(folder), "--dtype", "float32", *pools, *flags
    ) as server:
        yield server


class Conversation:
    """A chat of several turns, and what the server has computed of it."""

    def __init__(self, server: ServerProcess, answer: Json, mode: Json, *, ahead: bool) -> None:
        self._server, self._answer, self._mode, self._ahead = server, answer, mode, ahead
        self._messages: list[Json] = [{"role": "system", "content": SYSTEM}]
        self._computed: list[list[int]] = []
        self._asked: list[tuple[list[Json], list[int]]] = []

    def turn(self, text: str) -> tuple[int, int, int]:
        """Take a turn. Return how many tokens were found, how many could be, and all there are."""
        self._messages = [*self._messages, {"role": "user", "content": text}]
        prompt, begun = self._prompt(), self._background()
        possible = max((_alike(prompt, computed) for computed in self._computed), default=0)

        reply = self._server.chat(self._messages, **self._answer, **self._mode)

        [choice], usage = reply["choices"], reply["usage"]
        assert choice["finish_reason"] == "stop"
        assert usage["prompt_tokens"] == len(prompt)
        self._asked.append((self._messages, choice["token_ids"]))
        # The last token ends the answer, and is fed to nothing.
        self._computed.append([*prompt, *choice["token_ids"][:-1]])
        # As clients do: with its reasoning.
        self._messages = [*self._messages, choice["message"]]
        if self._ahead:
            self._wait_for_background(begun)
            self._computed.append(self._beginning())
        return usage["prompt_tokens_details"]["cached_tokens"], possible, len(prompt)

    def check_cold(self) -> None:
        """Fail unless each turn is answered alike where nothing is cached."""
        for messages, ids in self._asked:
            self._server.post("/flush_cache", {})
            reply = self._server.chat(messages, **self._answer, **self._mode)
            assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert reply["choices"][0]["token_ids"] == ids
        self._server.post("/flush_cache", {})

    def _prompt(self, *more: Json) -> list[int]:
        body = {"messages": [*self._messages, *more], **self._mode}
        response = self._server.post("/tokenize", body)
        assert response.status_code == 200, response.text
        return response.json()["tokens"]

    def _beginning(self) -> list[int]:
        """Return the next prompt up to what the user will say."""
        one, other = (self._prompt({"role": "user", "content": text}) for text in ("+", "-"))
        return one[: _alike(one, other)]

    def _background(self) -> float:
        return wait_idle(self._server)["background_requests"]

    def _wait_for_background(self, begun: float) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self._background() == begun:
            assert time.monotonic() < deadline, "nothing was prefilled ahead"
            time.sleep(0.02)


def _alike(one: list[int], other: list[int]) -> int:
    """Return how many tokens two prompts begin alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def modes(name: str) -> list[tuple[bool, Json]]:
    """Return whether answers think, and the fields of a chat that say so."""
    if name != "qwen3":
        return [(True, {})]
    return [(on, {"chat_template_kwargs": {"enable_thinking": on}}) for on in (True, False)]


SLOW = ("r1", "gpt_oss")


@pytest.mark.parametrize(
    "name", ["qwen3", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)]
)
def test_the_next_turn_finds_all_that_it_keeps(name: str, tmp_path: Path) -> None:
    with served(name, tmp_path) as server:
        for thinks, mode in modes(name):
            chat = Conversation(server, answer_fields(name, thinks=thinks), mode, ahead=True)
            turns = [chat.turn(text) for text in ASKED]
            chat.check_cold()

            assert turns[0][0] == 0
            for (found, possible, length), text in zip(turns[1:], ASKED[1:], strict=True):
                assert found == possible
                # What the user says, and what closes that turn and opens the answer's.
                assert len(text) < length - found < len(text) + 60


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_without_prefill_it_finds_all_up_to_the_first_difference(name: str, tmp_path: Path) -> None:
    with served(name, tmp_path, "--disable-next-turn-prefill") as server:
        for thinks, mode in modes(name):
            chat = Conversation(server, answer_fields(name, thinks=thinks), mode, ahead=False)
            turns = [chat.turn(text) for text in ASKED]
            chat.check_cold()

            for found, possible, _ in turns[1:]:
                print(name, thinks, found, possible, _)
                assert possible - LOST.get(name, 0) <= found <= possible
