"""The engine on a real network: what a server says, it says; programs run on it as over HTTP."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.engine import Engine
from runtime.errors import Aborted, BadRequest
from runtime.lang.backend import Backend
from runtime.lang.endpoint import Endpoint
from runtime.lang.local import Local
from runtime.lang.openai_endpoint import OpenAI
from runtime.lang.program import Program, function
from runtime.lang.state import State
from runtime.lang.words import assistant, gen, select, system, user
from tests.end_to_end.pools import wait_idle
from tests.testing.documents import marked_program
from tests.testing.scripts import script_environment
from tests.testing.server_process import Json, ServerProcess

GREEDY: dict[str, Any] = {"temperature": 0}
WAIT_S = 60.0
LONG = 12_000
# What no two replies have in common.
OWN = {"id", "created", "model", "e2e_latency", "cached_tokens", "computed_tokens"}


@pytest.fixture(scope="module")
def server(tiny_server: ServerProcess) -> ServerProcess:
    """A server of the tiny network, with the stand-in's tokenizer."""
    return tiny_server


@pytest.fixture(scope="module")
def engine(worded_model: Path) -> Iterator[Engine]:
    """An engine of it."""
    with Engine(
        model_path=str(worded_model),
        load_format="dummy",
        random_seed=0,
        dtype="float32",
        kv_cache_dtype="fp32",
        full_pages=200,
        check_every_step=True,
    ) as engine:
        yield engine


def told(reply: Any) -> Any:
    """Return a reply without what is its own."""
    if isinstance(reply, list):
        return [told(item) for item in reply]
    if isinstance(reply, dict):
        return {name: told(value) for name, value in reply.items() if name not in OWN}
    return reply


def post(server: ServerProcess, path: str, body: Json) -> Any:
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_generate_says_what_the_server_says(server: ServerProcess, engine: Engine) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 12}
    seeded = {"temperature": 1.0, "sampling_seed": 5, "max_new_tokens": 6, "n": 2}
    asked: list[Json] = [
        {"text": "Once upon a time", "sampling_params": sampling},
        {"input_ids": [[0, 5, 9], [0, 7]], "sampling_params": [sampling, {**sampling, "n": 1}]},
        {"text": "Once", "sampling_params": seeded, "cache_salt": "s", "priority": 3},
        {
            "text": "Once upon a time",
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 2,
            "return_text_in_logprobs": True,
        },
    ]
    for body in asked:
        arguments = {"prompt" if name == "text" else name: body[name] for name in body}
        assert told(engine.generate(**arguments)) == told(post(server, "/generate", body))
    streamed = list(engine.generate("Once upon a time", sampling, stream=True))
    assert told(streamed[-1]) == told(post(server, "/generate", asked[0]))


def test_score_and_chat_say_what_the_server_says(server: ServerProcess, engine: Engine) -> None:
    choices = [" open", " closed when the rain came", [5, 6]]
    body = {"text": "The window was", "choices": choices, "unconditional": True}
    messages = [{"role": "user", "content": "Hello"}]
    options: Json = {
        "temperature": 0,
        "max_tokens": 8,
        "logprobs": True,
        "reasoning_effort": "none",
    }

    scored = engine.score("The window was", choices, unconditional=True)
    answer = engine.chat(messages, **options)
    chunks = list(engine.chat(messages, stream=True, **options))

    assert told(scored) == told(post(server, "/score", body))
    assert told(answer) == told(
        post(server, "/v1/chat/completions", {"messages": messages, **options})
    )
    assert answer["object"] == "chat.completion"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    said = "".join(c["delta"].get("content", "") for e in chunks for c in e["choices"])
    assert said == answer["choices"][0]["message"]["content"]


def test_text_and_facts_are_the_servers_too(server: ServerProcess, engine: Engine) -> None:
    text = "Once upon a time"
    info, theirs = engine.server_info(), server.get("/server_info")

    assert engine.tokenize(text) == post(server, "/tokenize", {"prompt": text})["tokens"]
    assert engine.detokenize(engine.tokenize(text)) == text
    assert info.keys() == theirs.keys()
    assert info["internal_states"][0].keys() == theirs["internal_states"][0].keys()


def counters(engine: Engine) -> Json:
    return engine.server_info()["internal_states"][0]


@function
def reader(s: State, k: int) -> str:
    """Ask, choose, go on from the choice, and branch."""
    s += "A reader opens the same long report every morning and asks one more question about it.\n"
    s += f"Question {k}: " + gen("question", max_tokens=4)
    s += "\nIs it new? " + select("new", ["yes", "no, it is not"])
    forks = s.fork(3)
    forks += lambda i: f"\nReason {i}: " + gen("reason", max_tokens=3)
    forks.join()
    return s["question"] + s["new"] + "".join(s["reason"])


@function
def talk(s: State, word: str) -> str:
    """Two turns of a chat, the second begun for the model."""
    s += system("Be brief.") + user(word)
    s += assistant(gen("first", max_tokens=4))
    s += user("Go on.") + assistant("Well, " + gen("second", max_tokens=4))
    return s["first"] + s["second"]


@pytest.mark.parametrize(("program", "inputs"), [(reader, range(12)), (talk, ["Hi", "You"])])
def test_programs_give_the_same_as_over_http(
    server: ServerProcess, engine: Engine, program: Program, inputs: Any
) -> None:
    batch = [(item,) for item in inputs]
    local = Local(engine)

    here = list(program.run_batch(batch, backend=local, **GREEDY))
    with Endpoint(server.url) as endpoint:
        there = program.run_batch(batch, backend=endpoint, **GREEDY)

    assert [s.ret_value for s in here] == [s.ret_value for s in there]
    assert [s.text() for s in here] == [s.text() for s in there]
    stream = program.stream(*batch[0], backend=local, **GREEDY)
    assert "".join(stream.text_iter()) == here[0].text()


def test_a_fork_computes_the_prompt_once_and_each_tail_once(engine: Engine) -> None:
    prompt, tails = " reader" * 511 + "\n", [f"{letter}: why?" for letter in "ABCD"]

    @function
    def tree(s: State) -> None:
        s += prompt
        forks = s.fork(4)
        forks += [tail + gen("answer", max_tokens=2) for tail in tails]
        forks.join()

    assert engine.flush_cache()
    before = counters(engine)
    state = tree.run(backend=Local(engine), **GREEDY)
    cached = [meta["cached_tokens"] for meta in state.get_meta_info("answer")]
    after = counters(engine)

    lengths = [len(ids) for ids in engine.tokenize([prompt, *tails], add_special_tokens=False)]
    grown = {name: after[name] - before[name] for name in ("prompt_tokens", "cached_tokens")}
    assert cached == [lengths[0]] * 4
    assert grown["prompt_tokens"] - grown["cached_tokens"] == sum(lengths)


def test_a_select_is_one_call(engine: Engine) -> None:
    calls: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(engine, name)

    @function
    def choose(s: State) -> None:
        s += "The page was" + select("page", [" one", " two", " ten and more"])

    counted: Any = Counted()
    state = choose.run(backend=Local(counted))

    assert state["page"] in (" one", " two", " ten and more")
    assert calls == ["async_score"]
    rows = state.get_meta_info("page")["input_token_logprobs"]
    meta = state.get_meta_info("page")
    new = meta["scored_from"] - meta["cached_tokens"]
    assert meta["computed_tokens"] == new + sum(len(row) for row in rows if len(row) > 1)


def test_a_program_that_is_cancelled_ends_its_requests(engine: Engine) -> None:
    @function
    def long(s: State) -> None:
        s += "Once" + gen("x", max_tokens=LONG, ignore_eos=True)
        s.sync()

    before = counters(engine)["generation_tokens"]
    state = long.stream(backend=Local(engine))
    next(iter(state.text_iter("x")))

    state.cancel()

    assert isinstance(state.error(), Aborted)
    deadline = time.monotonic() + WAIT_S
    while (now := counters(engine))["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert now["generation_tokens"] - before < LONG
    assert engine.flush_cache()


@pytest.fixture
def backends(
    server: ServerProcess, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Backend]]:
    """All three; OpenAI's client finds the server in the environment."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    with Endpoint(server.url) as endpoint, OpenAI(server.model()) as openai:
        yield [endpoint, Local(engine), openai]


@function
def agent(s: State, steps: int) -> list[str]:
    """Throw away what each step's fork says, and go on in two by number."""
    for step in range(steps):
        s += f"Step {step}:"
        ss = s.fork(1)
        ss[0] += gen("thought", max_tokens=12, ignore_eos=True)
        ss.join()
    forks = s.fork(2)
    forks[0] += " left" + gen("end", max_tokens=4, ignore_eos=True)
    forks[-1] += " right" + gen("end", max_tokens=4, ignore_eos=True)
    forks.join()
    return [*s["thought"], *s["end"]]


def test_joined_forks_do_all_their_work_on_every_backend(
    server: ServerProcess, engine: Engine, backends: list[Backend]
) -> None:
    def generated() -> float:
        return wait_idle(server)["generation_tokens"] + counters(engine)["generation_tokens"]

    results: list[list[str]] = []
    for backend in backends:
        before = generated()
        results.append(agent.run(4, backend=backend, **GREEDY).ret_value)
        assert generated() - before == 4 * 12 + 2 * 4

    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("sampling", [{"temperature": -1}, {"top_p": 7}, {"max_tokens": -3}])
def test_a_refusal_names_the_generation_on_every_backend(
    backends: list[Backend], sampling: Json
) -> None:
    @function
    def ask(s: State, k: int) -> None:
        chosen: dict[str, Any] = sampling if k else {"max_tokens": 2}
        s += f"Step {k}:" + gen("answer", **chosen)

    reason = rf'gen\("answer"\): .*{next(iter(sampling)).removeprefix("max_")}'
    for backend in backends:
        with pytest.raises(BadRequest, match=f"^{reason}"):
            ask.run(1, backend=backend)
        with pytest.raises(BadRequest, match=rf"^batch\[1\]: {reason}"):
            ask.run_batch([{"k": 0}, {"k": 1}], backend=backend)
        with pytest.raises(BadRequest, match=f"^{reason}"):
            list(ask.stream(1, backend=backend).text_iter())


def test_everything_at_once_gives_what_it_gives_alone(engine: Engine) -> None:
    """Threads, an event loop and a program, on one engine."""
    sampling = {"temperature": 0, "max_new_tokens": 6}
    prompts = [f"Line {k}:" for k in range(6)]
    alone = [engine.generate(prompt, sampling)["text"] for prompt in prompts]

    async def many() -> list[str]:
        asked = [engine.async_generate(prompt, sampling) for prompt in prompts]
        return [reply["text"] for reply in await asyncio.gather(*asked)]

    with ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(engine.generate, prompt, sampling) for prompt in prompts]
        loop = pool.submit(lambda: asyncio.run(many()))
        program = pool.submit(lambda: reader.run(3, backend=Local(engine), **GREEDY).ret_value)

        assert [future.result(WAIT_S)["text"] for future in threads] == alone
        assert loop.result(WAIT_S) == alone
        assert program.result(WAIT_S) == reader.run(3, backend=Local(engine), **GREEDY).ret_value


def test_the_script_in_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    text = marked_program("runtime/README.md", "script")
    script = tmp_path / "script.py"
    script.write_text(text, "utf-8")

    done = subprocess.run(
        [sys.executable, script],
        env=script_environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert len([line for line in text.splitlines() if line.strip()]) == 8
    assert done.returncode == 0, done.stderr
    assert "12 + 30 = 42 {'type': 'stop', 'matched': 1}" in done.stdout
    assert "Your sister lives in Oslo." in done.stdout
    assert "Traceback" not in done.stderr
