"""One client of a soak: asks, continues, forks, edits, repeats, hangs up, and sends nonsense."""

import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from runtime.lang.lines import lines
from tests.soak.gate import Gate
from tests.soak.tally import Tally
from tests.testing.traffic import Ask, Traffic

Json = dict[str, Any]
TEXT = "The server has seen those pages before, so it should not have to read them again. "
BAD_BODIES: list[tuple[str, Any]] = [
    ("/generate", {}),
    ("/generate", {"input_ids": []}),
    ("/generate", {"input_ids": [1, -5]}),
    ("/generate", {"input_ids": [1, 1 << 40]}),
    ("/generate", {"input_ids": "x"}),
    ("/generate", {"input_ids": [1], "sampling_params": {"temperature": -1}}),
    ("/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": "many"}}),
    ("/v1/completions", {"prompt": {"a": 1}}),
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]}),
    ("/score", {"text": "Is it?", "choices": []}),
]


class Client:
    """Sends one call after the other until told to stop.

    context_tokens  what no prompt may be longer than
    """

    def __init__(
        self, http: httpx.AsyncClient, gate: Gate, tally: Tally, *, traffic: Traffic, context: int
    ) -> None:
        self._http = http
        self._gate = gate
        self._tally = tally
        self._traffic = traffic
        self._context = context
        self._draw: random.Random = traffic.draw
        self._chat: list[Json] = []
        self._kinds: list[tuple[str, int, Callable[[], Awaitable[None]]]] = [
            ("generate", 40, self._generate),
            ("completions", 14, self._completions),
            ("chat", 12, self._converse),
            ("stop string", 6, self._stop),
            ("score", 4, self._score),
            ("hang up on a stream", 8, self._leave_stream),
            ("hang up on a reply", 6, self._leave_reply),
            ("abort by id", 4, self._abort),
            ("long prompt", 4, self._long),
            ("too long", 3, self._too_long),
            ("bad body", 4, self._bad),
            ("flush while busy", 1, self._flush_busy),
        ]

    async def run(self, stopped: Callable[[], bool]) -> None:
        """Go on until `stopped`. Raises AssertionError for any reply that is not right."""
        weights = [weight for _, weight, _ in self._kinds]
        while not stopped():
            [(name, _, act)] = self._draw.choices(self._kinds, weights)
            async with self._gate.passing():
                self._tally.calls[name] += 1
                begun = time.monotonic()
                await act()
                self._tally.took(name, begun, time.monotonic())

    async def _post(self, path: str, body: Json) -> Any:
        response = await self._http.post(path, json=body)
        assert response.status_code == 200, f"{path}: {response.status_code} {response.text[:300]}"
        return response.json()

    def _body(self, ask: Ask, **extra: Any) -> Json:
        sampling = {
            "n": ask.choices,
            "max_new_tokens": ask.new_tokens,
            "temperature": ask.temperature,
            "sampling_seed": ask.seed,
            "ignore_eos": True,
        }
        body = {"input_ids": ask.prompt, "sampling_params": sampling, "cache_salt": ask.salt}
        return {**body, **extra}

    async def _generate(self) -> None:
        await self._answer(self._traffic.next())

    async def _long(self) -> None:
        prompt = self._traffic.words(self._draw.randint(self._context // 2, self._context - 100))
        await self._answer(Ask("long", prompt, self._draw.randint(1, 60), "long"), follow=False)

    async def _answer(self, ask: Ask, *, follow: bool = True) -> None:
        """Ask in one of two ways; hold the reply, and let later asks build on it."""
        if self._draw.random() < 0.5:
            answers = await self._streamed(self._body(ask), ask.choices)
        else:
            reply = await self._post("/generate", self._body(ask))
            replies = reply if isinstance(reply, list) else [reply]
            answers = [item["output_ids"] for item in replies]
        assert [len(answer) for answer in answers] == [ask.new_tokens] * ask.choices
        self._tally.answered(ask, answers)
        if follow:
            self._traffic.answered(ask, self._draw.choice(answers))

    async def _streamed(self, body: Json, choices: int) -> list[list[int]]:
        answers: list[list[int]] = [[] for _ in range(choices)]
        body = {**body, "stream": True}
        async with self._http.stream("POST", "/generate", json=body) as response:
            assert response.status_code == 200, (await response.aread())[:300]
            ended = False
            async for line in lines(response.aiter_bytes()):
                ended = line == "data: [DONE]"
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    answers[event.get("index", 0)] = event["output_ids"]
                if ended:
                    break
        assert ended, "the stream ended without [DONE]"
        return answers

    async def _completions(self) -> None:
        ask = self._traffic.next()
        body = {
            "prompt": ask.prompt,
            "n": ask.choices,
            "max_tokens": ask.new_tokens,
            "temperature": ask.temperature,
            "seed": ask.seed,
            "ignore_eos": True,
            "cache_salt": ask.salt,
        }
        reply = await self._post("/v1/completions", body)
        assert len(reply["choices"]) == ask.choices
        assert reply["usage"]["completion_tokens"] == ask.choices * ask.new_tokens
        self._tally.choices += ask.choices
        self._tally.tokens += ask.choices * ask.new_tokens

    async def _converse(self) -> None:
        """Take the next turn of a chat, or edit the last one, or begin anew."""
        draw = self._draw
        if len(self._chat) > 8 or draw.random() < 0.1:
            self._chat = []
        if self._chat and draw.random() < 0.3:
            self._chat = self._chat[:-2]
        question = TEXT * draw.randint(1, 4) + str(draw.randrange(1000))
        messages = [*self._chat, {"role": "user", "content": question}]
        body = {
            "messages": messages,
            "max_tokens": draw.randint(1, 90),
            "temperature": draw.choice([0, 1]),
            "seed": draw.randrange(1 << 40),
            "cache_salt": "chat",
        }
        reply = await self._post("/v1/chat/completions", body)
        message = reply["choices"][0]["message"]
        self._tally.choices += 1
        self._tally.tokens += reply["usage"]["completion_tokens"]
        self._chat = [*messages, {"role": "assistant", "content": message["content"] or ""}]

    async def _score(self) -> None:
        choices = [" yes", " no", " perhaps it was"]
        text = TEXT * self._draw.randint(1, 3) + "Was it?"
        reply = await self._post("/score", {"text": text, "choices": choices, "cache_salt": "s"})
        assert reply

    async def _stop(self) -> None:
        """Let an answer end at a string that is sure to come up soon, or at its length."""
        ask = self._traffic.next()
        body = self._body(ask)
        body["sampling_params"] |= {"stop": list("aeiou "), "max_new_tokens": 200}
        reply = await self._post("/generate", body)
        replies = reply if isinstance(reply, list) else [reply]
        for item in replies:
            meta = item["meta_info"]
            assert meta["finish_reason"]["type"] in ("stop", "length"), meta
            self._tally.tokens += meta["completion_tokens"]
        self._tally.choices += len(replies)

    async def _leave_stream(self) -> None:
        ask = self._traffic.next()
        body = self._body(ask, stream=True)
        body["sampling_params"]["max_new_tokens"] = 400
        events = self._draw.randint(0, 12)
        async with self._http.stream("POST", "/generate", json=body) as response:
            assert response.status_code == 200
            async for line in lines(response.aiter_bytes()):
                events -= line.startswith("data: {")
                if events < 0:
                    break
        self._tally.leave(ask)

    async def _leave_reply(self) -> None:
        ask = self._traffic.next()
        body = self._body(ask)
        body["sampling_params"]["max_new_tokens"] = 600
        timeout = httpx.Timeout(20.0, read=self._draw.uniform(0.01, 0.5))
        try:
            response = await self._http.post("/generate", json=body, timeout=timeout)
        except httpx.ReadTimeout:
            self._tally.leave(ask)
            return
        assert response.status_code == 200, response.text[:300]
        self._tally.choices += ask.choices
        self._tally.tokens += 600 * ask.choices

    async def _abort(self) -> None:
        """Abort a stream of one's own by its id, after its first event."""
        ask = self._traffic.next()
        rid = f"r{self._draw.getrandbits(64):x}"
        body = self._body(ask, stream=True, rid=rid)
        body["sampling_params"]["max_new_tokens"] = 400
        async with self._http.stream("POST", "/generate", json=body) as response:
            assert response.status_code == 200
            told = False
            async for line in lines(response.aiter_bytes()):
                if line.startswith("data: {") and not told:
                    told = True
                    await self._http.post("/abort_request", json={"rid": rid})
        self._tally.leave(ask)

    async def _too_long(self) -> None:
        prompt = self._traffic.words(self._context + self._draw.randint(0, 500))
        await self._refused("/generate", self._body(Ask("too long", prompt, 1, "long")))

    async def _bad(self) -> None:
        await self._refused(*self._draw.choice(BAD_BODIES))

    async def _refused(self, path: str, body: Any) -> None:
        response = await self._http.post(path, json=body)
        assert response.status_code == 400, f"{path}: {response.status_code} {response.text[:300]}"
        assert response.json()["error"]["message"]
        self._tally.refused += 1

    async def _flush_busy(self) -> None:
        response = await self._http.post("/flush_cache", json={})
        assert response.status_code in (200, 400), response.text[:300]
