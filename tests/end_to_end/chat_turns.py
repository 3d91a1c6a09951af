"""Chats of several turns through a server, and what it has computed of them."""

import time
from itertools import takewhile
from typing import Any

from tests.end_to_end.pools import wait_idle
from tests.testing.server_process import ServerProcess

Json = dict[str, Any]
SYSTEM = "Answer in one line, and keep to what the house book says. " * 3
DEADLINE_S = 60.0


class Conversation:
    """A chat of several turns, and what the server has computed of it."""

    def __init__(self, server: ServerProcess, answer: Json, mode: Json, *, ahead: bool) -> None:
        self._server, self._answer, self._mode, self._ahead = server, answer, mode, ahead
        self._messages: list[Json] = [{"role": "system", "content": SYSTEM}]
        self._computed: list[list[int]] = []
        self._warm: list[tuple[list[Json], list[int]]] = []

    def turn(self, text: str) -> tuple[int, int, int]:
        """Take a turn. Return how many tokens were found, how many could be, and all there are."""
        self._messages = [*self._messages, {"role": "user", "content": text}]
        prompt, begun = self._prompt(), self._background()
        possible = max((_alike(prompt, computed) for computed in self._computed), default=0)

        reply = self._server.chat(self._messages, **self._answer, **self._mode)

        [choice], usage = reply["choices"], reply["usage"]
        assert choice["finish_reason"] == "stop"
        assert usage["prompt_tokens"] == len(prompt)
        found = usage["prompt_tokens_details"]["cached_tokens"]
        if found:
            self._warm.append((self._messages, choice["token_ids"]))
        # The last token ends the answer, and is fed to nothing.
        self._computed.append([*prompt, *choice["token_ids"][:-1]])
        # As clients do: with its reasoning.
        self._messages = [*self._messages, choice["message"]]
        if self._ahead:
            self._wait_for_background(begun)
            self._computed.append(self._beginning())
        return found, possible, len(prompt)

    def check_cold(self) -> None:
        """Fail unless turns that found something are answered alike where nothing is cached."""
        for messages, ids in self._warm:
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
