"""Programs against a real server: what they cost, what they give, and what is left behind."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.errors import Aborted, BadRequest, Unavailable
from runtime.lang.choices import greedy_token_selection, unconditional_likelihood_normalized
from runtime.lang.endpoint import Endpoint
from runtime.lang.openai_endpoint import OpenAI
from runtime.lang.program import function
from runtime.lang.state import AsyncState, State
from runtime.lang.words import assistant, gen, select, system, user
from tests.end_to_end.pools import assert_all_free, read_state, wait_idle
from tests.testing.documents import marked_program
from tests.testing.scripts import script_environment
from tests.testing.server_process import ServerProcess

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
GREEDY: dict[str, Any] = {"temperature": 0}
WAIT_S = 60.0
LONG = 12_000


@pytest.fixture(scope="module")
def server(tiny_server: ServerProcess) -> ServerProcess:
    """A server of the tiny network, with the stand-in's tokenizer."""
    return tiny_server


class Counted(httpx.AsyncHTTPTransport):
    """A transport that remembers which paths were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass the request on."""
        self.paths.append(request.url.path)
        return await super().handle_async_request(request)


@pytest.fixture
def wire() -> Counted:
    """What the endpoint sends its requests through."""
    return Counted()


@pytest.fixture
def endpoint(server: ServerProcess, wire: Counted) -> Iterator[Endpoint]:
    """The native backend."""
    with Endpoint(server.url, transport=wire) as endpoint:
        yield endpoint


def tokens(server: ServerProcess, text: str) -> int:
    reply = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
    return reply.json()["count"]


class Meter:
    """What the server has done since the meter was made."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._before = wait_idle(server)

    def count(self, name: str) -> int:
        """Return how much a counter has grown."""
        return int(wait_idle(self._server)[name] - self._before.get(name, 0.0))

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not in the cache."""
        return self.count("prompt_tokens") - self.count("cached_tokens")


def test_a_fork_computes_the_prompt_once_and_each_tail_once(
    server: ServerProcess, endpoint: Endpoint
) -> None:
    prompt = " reader" * 2047 + "\n"
    tails = [f"{letter}: why?" for letter in "ABCDEFGHIJKLMNOP"]

    @function
    def tree(s: State) -> list[str]:
        s += prompt
        forks = s.fork(16)
        forks += [tail + gen("answer", max_tokens=4) for tail in tails]
        forks.join()
        return s["answer"]

    meter = Meter(server)
    state = tree.run(backend=endpoint, **GREEDY)

    assert len(state.ret_value) == 16
    expected = tokens(server, prompt) + sum(tokens(server, tail) for tail in tails)
    assert tokens(server, prompt) == 2048
    assert meter.computed_tokens == expected
    cached = [meta["cached_tokens"] for meta in state.get_meta_info("answer")]
    assert cached == [2048] * 16


def test_a_select_is_one_round_trip_and_computes_nothing_twice(
    server: ServerProcess, endpoint: Endpoint, wire: Counted
) -> None:
    @function
    def choose(s: State) -> str:
        s += "Which of the pages was read?\nIt was page"
        s += select("page", [f" {number}" for number in NUMBERS])
        return s["page"]

    meter = Meter(server)
    state = choose.run(backend=endpoint)
    meta = state.get_meta_info("page")

    assert state.ret_value.strip() in NUMBERS
    assert wire.paths == ["/score"]
    rows = [len(row) for row in meta["input_token_logprobs"]]
    assert len(rows) == 10
    assert meter.computed_tokens == meta["scored_from"] + sum(n for n in rows if n > 1)
    assert meta["computed_tokens"] == meter.computed_tokens


def test_a_score_is_what_the_prompts_own_log_probabilities_say(
    server: ServerProcess, endpoint: Endpoint
) -> None:
    """Every token of every choice, against one plain request per choice."""
    start, choices = "The window was", (" open", " closed when the rain came", " closed")

    @function
    def choose(s: State) -> None:
        s += start + select("x", choices, choices_method=greedy_token_selection)
        s += "." + select("y", choices, choices_method=unconditional_likelihood_normalized)

    state = choose.run(backend=endpoint)

    scored = state.get_meta_info("x")["input_token_logprobs"]
    extra = {"return_logprob": True, "logprob_start_len": 0}
    for choice, rows in zip(choices, scored, strict=True):
        reply = server.generate(start + choice, extra, max_new_tokens=0)
        told = reply["meta_info"]["input_token_logprobs"][-len(rows) :]
        assert [row[1] for row in rows] == [row[1] for row in told]
        assert [row[0] for row in rows] == pytest.approx([row[0] for row in told], abs=1e-5)
    assert state["y"] in choices


@function
def reader(s: State, k: int) -> str:
    """Ask, choose, and go on from the choice."""
    s += "A reader opens the same long report every morning and asks one more question about it.\n"
    s += f"Question {k}: " + gen("question", max_tokens=2)
    s += "\nIs it new? " + select("new", ["yes", "no"])
    return s["question"] + s["new"]


@pytest.mark.slow
def test_a_thousand_programs_at_once_end_as_one_by_one(
    server: ServerProcess, endpoint: Endpoint
) -> None:
    batch = [{"k": k} for k in range(1000)]
    before = threading.active_count()

    together = [s.ret_value for s in reader.run_batch(batch, backend=endpoint, **GREEDY)]
    threads = threading.active_count() - before
    alone = [reader.run(k, backend=endpoint, **GREEDY).ret_value for k in range(0, 1000, 8)]

    assert together[::8] == alone
    assert threads <= 20
    wait_idle(server)


def test_the_next_generation_continues_at_the_exact_last_token(endpoint: Endpoint) -> None:
    @function
    def turns(s: State) -> None:
        s += "Once upon a time" + gen("first", max_tokens=20, ignore_eos=True)
        s += "\nAnd then" + gen("second", max_tokens=2)

    state = turns.run(backend=endpoint, **GREEDY)

    first, second = state.get_meta_info("first"), state.get_meta_info("second")
    # The last token was sampled, never fed.
    assert second["cached_tokens"] == first["prompt_tokens"] + 20 - 1


def test_a_batch_computes_what_all_begin_with_once(
    server: ServerProcess, endpoint: Endpoint, wire: Counted
) -> None:
    beginning = "Please write a short list: " + " ".join(f"item {k}," for k in range(60))

    @function
    def ask(s: State, question: str) -> None:
        s += beginning + "\n" + question + gen("answer", max_tokens=2)

    meter = Meter(server)
    ask.run_batch([{"question": f"number {k}?"} for k in range(6)], backend=endpoint, **GREEDY)

    tails = sum(tokens(server, f"number {k}?") for k in range(6))
    assert len(wire.paths) == 7
    assert meter.computed_tokens == tokens(server, beginning + "\n") + tails


@function
def talk(s: State, word: str) -> None:
    """Two turns of a chat, the second begun for the model."""
    s += system("Be brief.")
    s += user(word)
    with s.assistant():
        s += gen("first", max_tokens=4)
    s += user("Go on.")
    s += assistant("Well, " + gen("second", max_tokens=4))


def test_a_chat_is_what_the_servers_own_template_makes_of_it(
    server: ServerProcess, endpoint: Endpoint
) -> None:
    state = talk.run("Hello", backend=endpoint, **GREEDY)
    messages = state.messages()

    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"]
    off = {"reasoning_effort": "none"}
    reply = server.chat(messages[:2], max_tokens=4, **off)
    assert reply["choices"][0]["message"]["content"] == state["first"]
    continued = server.chat(
        [*messages[:4], {"role": "assistant", "content": "Well, "}],
        max_tokens=4,
        continue_final_message=True,
        **off,
    )
    assert continued["choices"][0]["message"]["content"] == state["second"]


def test_a_chat_may_choose_its_answer(endpoint: Endpoint, wire: Counted) -> None:
    @function
    def choose(s: State) -> str:
        s += user("Is the window open?")
        s += assistant("I say " + select("x", ["yes", "no, it was closed"]) + ".")
        return s["x"]

    state = choose.run(backend=endpoint)

    assert wire.paths == ["/score"]
    assert state.messages()[-1]["content"] == f"I say {state.ret_value}."


def test_forks_of_a_chat_share_its_closed_turns(server: ServerProcess, endpoint: Endpoint) -> None:
    instructions = "Answer in one word. " * 40

    @function
    def ask(s: State) -> list[str]:
        s += system(instructions)
        forks = s.fork(4)
        forks += [
            user(f"{name}?") + assistant(gen("x", max_tokens=2)) for name in ("A", "B", "C", "D")
        ]
        forks.join()
        return s["x"]

    meter = Meter(server)
    state = ask.run(backend=endpoint, **GREEDY)

    shared = tokens(server, instructions) + 1  # and what begins a text
    assert [meta["cached_tokens"] for meta in state.get_meta_info("x")] == [shared] * 4
    prompts = [meta["prompt_tokens"] for meta in state.get_meta_info("x")]
    assert meter.computed_tokens == shared + sum(prompts) - 4 * shared


def test_an_openai_compatible_server_runs_the_same_programs(
    server: ServerProcess, endpoint: Endpoint
) -> None:
    off = {"reasoning_effort": "none"}
    with OpenAI(server.model(), base_url=f"{server.url}/v1", extra_body=off) as openai:
        for program, arguments in ((talk, ("Hello",)), (reader, (3,))):
            native = program.run(*arguments, backend=endpoint, **GREEDY)
            foreign = program.run(*arguments, backend=openai, **GREEDY)
            assert foreign.text() == native.text()
        streamed = "".join(talk.stream("Hello", backend=openai, **GREEDY).text_iter())

    assert streamed == talk.run("Hello", backend=endpoint, **GREEDY).text()


def test_a_stream_spells_what_a_run_gives(endpoint: Endpoint) -> None:
    whole = reader.run(7, backend=endpoint, **GREEDY)
    stream = reader.stream(7, backend=endpoint, **GREEDY)

    assert "".join(stream.text_iter("question")) == whole["question"]
    assert "".join(stream.text_iter()) == whole.text()
    assert stream.ret_value == whole.ret_value


def test_async_programs_give_the_same(endpoint: Endpoint) -> None:
    @function
    async def ask(s: AsyncState, k: int) -> str:
        s += f"Question {k}:" + gen("x", max_tokens=3)
        forks = s.fork(2)
        forks += lambda i: f" {i}" + gen("y", max_tokens=2)
        forks.join()
        return "".join([await s["x"], *(await s["y"])])

    @function
    def same(s: State, k: int) -> str:
        s += f"Question {k}:" + gen("x", max_tokens=3)
        forks = s.fork(2)
        forks += lambda i: f" {i}" + gen("y", max_tokens=2)
        forks.join()
        return "".join([s["x"], *s["y"]])

    batch = [{"k": k} for k in range(8)]

    async_values = [s.ret_value for s in ask.run_batch(batch, backend=endpoint, **GREEDY)]
    assert async_values == [s.ret_value for s in same.run_batch(batch, backend=endpoint, **GREEDY)]


def test_what_the_server_refuses_is_raised_by_name(endpoint: Endpoint) -> None:
    @function
    def number(s: State) -> None:
        s += "One and one is " + gen("sum", max_tokens=4, min_p=3)

    @function
    def endless(s: State) -> None:
        s += " reader" * 20000 + gen("x", max_tokens=4)

    state = number.stream(backend=endpoint)
    with pytest.raises(BadRequest, match=r'^gen\("sum"\): .*min_p'):
        _ = state["sum"]
    with pytest.raises(BadRequest, match=r'^gen\("x"\): '):
        endless.run(backend=endpoint)
    with Endpoint("http://127.0.0.1:9") as nowhere, pytest.raises(Unavailable, match="sum"):
        number.run(backend=nowhere)


def test_a_cancelled_or_dropped_program_ends_its_requests(
    server: ServerProcess, endpoint: Endpoint
) -> None:

    @function
    def long(s: State) -> None:
        forks = s.fork(2)
        forks += lambda i: f"{i}" + gen("x", max_tokens=LONG, ignore_eos=True)
        forks.join()
        s.sync()

    def wait_running() -> None:
        deadline = time.monotonic() + WAIT_S
        while read_state(server)["running"] < 2:
            assert time.monotonic() < deadline, "nothing runs"
            time.sleep(0.02)

    before = wait_idle(server)["generation_tokens"]
    cancelled = long.stream(backend=endpoint)
    wait_running()
    cancelled.cancel()
    assert isinstance(cancelled.error(), Aborted)
    wait_idle(server)

    dropped = long.stream(backend=endpoint)
    wait_running()
    del dropped
    assert wait_idle(server)["generation_tokens"] - before < LONG
    assert_all_free(server)


def test_the_program_in_the_readme_runs_as_it_stands(server: ServerProcess, tmp_path: Path) -> None:
    text = marked_program("runtime/lang/README.md", "program")
    lines = [line for line in text.splitlines() if line.strip()]
    script = tmp_path / "program.py"
    script.write_text(text.replace("http://127.0.0.1:30000", server.url), "utf-8")

    done = subprocess.run(
        [sys.executable, script],
        env=script_environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert len(lines) == 13
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^Once there was a (?:fox|bear) ", done.stdout, re.MULTILINE)) == 2
    assert "2/2" in done.stderr
    assert "Error" not in done.stderr
