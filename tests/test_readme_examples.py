"""The documents' programs and commands run as they stand, and the default model answers well."""

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from runtime.lang.backend import set_default_backend
from tests.testing.documents import documents, program, section, text_of
from tests.testing.scripts import script_environment
from tests.testing.server_process import ServerProcess

URL = "http://127.0.0.1:30000"
SERVER = "runtime/server/README.md"
LANG = "runtime/lang/README.md"
REFERENCE = "runtime/lang/REFERENCE.md"
EXAMPLES = {
    SERVER: ("Multi-turn chat", "Tool use"),
    LANG: ("Tree of thoughts", "Batch extraction", "Routing"),
}
CLIENTS = ("Anthropic's clients", "OpenAI's Responses API")
# Where each Python block is: by heading, and how many there are.
PROGRAMS = {
    "README.md": {"Talk to it": 1},
    "runtime/README.md": {"In a script": 1},
    SERVER: {**dict.fromkeys(CLIENTS, 1), **dict.fromkeys(EXAMPLES[SERVER], 1)},
    LANG: {"Programs": 1, **dict.fromkeys(EXAMPLES[LANG], 1)},
}
Json = dict[str, Any]


class Recorder(ThreadingHTTPServer):
    """Keeps requests, and passes them to whoever answers.

    answer  what is replied to a path and a body
    calls   path and body of each request
    """

    daemon_threads = True

    def __init__(self, answer: Callable[[str, Json], httpx.Response]) -> None:
        super().__init__(("127.0.0.1", 0), _Recording)
        self.answer = answer
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.calls: list[tuple[str, Json]] = []


class _Recording(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append((self.path, body))
        reply = self.server.answer(self.path, body)
        self.send_response(reply.status_code)
        self.send_header("Content-Type", reply.headers["Content-Type"])
        self.send_header("Content-Length", str(len(reply.content)))
        self.end_headers()
        self.wfile.write(reply.content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(default_server: ServerProcess) -> ServerProcess:
    """The default model, served as README does but for the port, with a seed."""
    return default_server


@pytest.fixture
def recorder(server: ServerProcess) -> Iterator[Recorder]:
    """Where a program's requests go instead."""
    with Recorder(server.post) as recorder:
        thread = threading.Thread(target=recorder.serve_forever, args=(0.01,))
        thread.start()
        yield recorder
        recorder.shutdown()
        thread.join()


class Runner:
    """Runs programs in processes of their own."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._file = folder / "program.py"

    def __call__(self, text: str) -> "subprocess.CompletedProcess[str]":
        """Return how a program went; it must have gone well."""
        assert URL in text
        self._file.write_text(text.replace(URL, self._url), "utf-8")
        done = subprocess.run(
            [sys.executable, self._file],
            env=script_environment(),
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        assert "Error" not in done.stderr
        return done


@pytest.fixture
def run(recorder: Recorder, tmp_path: Path) -> Runner:
    """Runs a program against the recorder."""
    return Runner(recorder.url, tmp_path)


def test_every_python_block_is_a_program_that_a_test_runs() -> None:
    """Here, but for the marked ones: test_engine.py and test_lang.py run those."""
    found: dict[str, dict[str, int]] = {}
    for document in documents():
        heading = ""
        for line in text_of(document).splitlines():
            heading = line.lstrip("# ") if re.match(r"##+ ", line) else heading
            if line.startswith("```python"):
                counts = found.setdefault(document, {})
                counts[heading] = counts.get(heading, 0) + 1

    assert found.pop(REFERENCE)
    assert found == PROGRAMS


@pytest.mark.parametrize("document", EXAMPLES)
def test_every_example_is_run_here_and_is_short(document: str) -> None:
    found = re.search(r"^## Examples\n(.*?)^## ", text_of(document), re.MULTILINE | re.DOTALL)
    assert found
    names = EXAMPLES[document]
    lines = {name: sum(map(bool, program(document, name).splitlines())) for name in names}

    assert tuple(re.findall(r"^### (.*)$", found[1], re.MULTILINE)) == names
    assert all(15 <= count <= 30 for count in lines.values()), lines


def test_each_turn_of_the_chat_finds_the_turns_before_it_in_the_cache(
    run: Runner, recorder: Recorder
) -> None:
    said = run(program(SERVER, "Multi-turn chat")).stdout
    told = re.findall(r"^\[(\d+) of (\d+) prompt", said, re.M)
    cached, prompts = zip(*((int(part), int(whole)) for part, whole in told), strict=True)

    assert len(prompts) == len(recorder.calls) == 4
    assert all(cached[turn] >= prompts[turn - 1] for turn in (1, 2, 3))
    roles = [message["role"] for message in recorder.calls[-1][1]["messages"]]
    assert roles == ["system", *["user", "assistant"] * 3, "user"]
    # What was said first is remembered past a turn about something else.
    answers = re.findall(r"^> .*\n(.*)$", said, re.MULTILINE)
    assert answers[1] == "12 + 30 = 42"
    assert re.fullmatch(r"(Clara|Your sister) lives in Oslo\.", answers[2])
    assert re.fullmatch(r"(Clara|Your sister) works as a pilot\.", answers[3])


def test_the_tree_of_thoughts_judges_each_thought_in_one_round_trip_and_goes_on_from_the_best(
    run: Runner, recorder: Recorder
) -> None:
    said = run(program(LANG, "Tree of thoughts")).stdout

    bodies = {path: [b for p, b in recorder.calls if p == path] for path, _ in recorder.calls}
    shared = [b for b in bodies["/generate"] if b["sampling_params"].get("max_new_tokens") == 0]
    # Three guesses, three from each of the two best, two clues; every fork computed once.
    assert len(bodies["/score"]) == (3 + 6) * 2
    assert len(shared) == 3
    assert len(bodies["/generate"]) == 1 + 3 + 9
    told = re.findall(r"^(Anna|Lena|Tom): ([+-]\d+\.\d)$", said, re.MULTILINE)
    assert len(told) == len(said.splitlines()) == 6
    # Two clues fit Tom, one fits each of the others: he alone is likely.
    likely = {name: float(promise) > 8 for name, promise in told}
    assert likely == {name: name == "Tom" for name in likely}


def test_each_extracted_line_is_an_order_of_the_schema(run: Runner, recorder: Recorder) -> None:
    text = program(LANG, "Batch extraction")
    found = re.search(r"^ORDER = (\{.*?^\})$", text, re.MULTILINE | re.DOTALL)
    assert found
    schema = ast.literal_eval(found[1])

    done = run(text)

    orders = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    for order in orders:
        jsonschema.validate(order, schema)
    assert [tuple(order.values()) for order in orders] == [
        ("Mary", "kettle", 7),
        ("Anna", "lamp", 12),
        ("Tom", "chair", 40),
    ]
    assert "3/3" in done.stderr
    asked = [body["sampling_params"].get("json_schema") for _, body in recorder.calls]
    assert [json.loads(one) for one in asked if one is not None] == [schema] * 3


def check_results(said: str, recorder: Recorder) -> None:
    """Compare the calls that the tool's program told of with the results that it sent."""
    told = re.findall(r'^get_weather\(\{"city": ?"(\w+)"\}\) = (.+)$', said, re.MULTILINE)
    skies = {"Oslo": "rainy", "Rome": "sunny"}
    sent = [body["messages"] for _, body in recorder.calls]
    assert len(told) == len(sent) - 1
    for messages, (city, result) in zip(sent[1:], told, strict=True):
        call, answer = messages[-2]["tool_calls"][0], messages[-1]
        assert json.loads(call["function"]["arguments"]) == {"city": city}
        assert answer == {"role": "tool", "tool_call_id": call["id"], "content": result}
        assert json.loads(result) == {"sky": skies[city]}


def test_the_tool_that_was_called_is_run_and_its_result_sent(
    run: Runner, recorder: Recorder
) -> None:
    said = run(program(SERVER, "Tool use")).stdout

    assert said == 'get_weather({"city": "Oslo"}) = {"sky": "rainy"}\nIt is rainy in Oslo.\n'
    assert len(recorder.calls) == 2
    check_results(said, recorder)


def test_the_tool_loop_ends_with_a_model_that_calls_whenever_it_may(
    run: Runner, recorder: Recorder
) -> None:
    def answer(_: str, body: Json) -> httpx.Response:
        called = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
        calls = [{"id": f"call_{len(recorder.calls)}", "type": "function", "function": called}]
        message: Json = {"role": "assistant", "content": "Enough."}
        if body["tool_choice"] != "none":
            message |= {"content": None, "tool_calls": calls}
        choice: Json = {"index": 0, "finish_reason": "stop", "message": message}
        head: Json = {"id": "x", "object": "chat.completion", "created": 0, "model": "x"}
        return httpx.Response(200, json={**head, "choices": [choice]})

    recorder.answer = answer
    said = run(program(SERVER, "Tool use")).stdout

    assert [body["tool_choice"] for _, body in recorder.calls][-1] == "none"
    assert len(recorder.calls) == 4
    assert said.endswith("\nEnough.\n")
    check_results(said, recorder)


def test_every_mail_finds_its_route_and_every_route_does_its_work(run: Runner) -> None:
    said = run(program(LANG, "Routing")).stdout

    assert re.findall(r"^.*\. \((\w+)\) (.*)$", said, re.MULTILINE) == [
        ("weather", 'Noted: {"city":"Oslo","sky":"rainy","degrees":7}'),
        ("market", 'In the books: {"name":"Mary","item":"kettle","price":7}'),
        ("music", "A colleague will read it."),
    ]


def test_every_example_of_the_languages_reference_prints_what_its_comments_say(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", text_of(REFERENCE), re.DOTALL)
    text = "\n".join(blocks)
    assert URL in text
    file = tmp_path / "examples.py"
    file.write_text(text.replace(URL, server.url), "utf-8")
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)

    try:
        runpy.run_path(str(file))
    finally:
        set_default_backend(None)

    assert capsys.readouterr().out.splitlines() == expected
    assert all("print(" in block for block in blocks[1:])
    assert len(expected) == text.count("print(")


def test_the_first_programs_of_the_official_clients_print_what_stands_below(
    server: ServerProcess, run: Runner, recorder: Recorder
) -> None:
    shown = re.search(r"```\n\n```\n(.*?)```", section("README.md", "Talk to it"), re.DOTALL)
    assert shown
    assert httpx.post(f"{server.url}/flush_cache").status_code == 200
    programs = program("README.md", "Talk to it")
    said = run(programs + "".join(program(SERVER, client) for client in CLIENTS)).stdout

    hello = "Hello! How can I help you?\n"
    assert said == f"{shown[1]}{hello}{hello}12 + 30 = 42\n"
    paths = ["/v1/chat/completions"] * 5
    paths += ["/v1/messages", "/v1/responses", "/v1/responses"]
    assert [path for path, _ in recorder.calls] == paths


def paths_named(document: str, heading: str) -> set[str]:
    """Return the paths in the first column of a section's tables."""
    rows = re.findall(r"^\| (`/.*?) \|", section(document, heading), re.MULTILINE)
    paths = {path for row in rows for path in re.findall(r"`(/[^`?]*)", row)}
    filled = (path.replace("NAME", "{name}") for path in paths)
    return {re.sub(r"\bID$", "{response_id}", path) for path in filled}


def test_every_path_of_a_running_server_is_documented(server: ServerProcess) -> None:
    served = set(httpx.get(f"{server.url}/openapi.json").json()["paths"])
    undescribed = {"/docs", "/openapi.json"}

    assert paths_named("README.md", "What it serves") - undescribed <= served
    assert paths_named(SERVER, "Endpoints") == served


def test_every_metric_they_mention_is_exported(server: ServerProcess) -> None:
    exported = set(re.findall(r"^# TYPE (\S+)", httpx.get(f"{server.url}/metrics").text, re.M))
    for document in documents():
        for name in re.findall(r"`((?:sglang|umbra):\w+)`", text_of(document)):
            assert name in exported, f"{document}: there is no {name}"


# What the replies to the curl commands of each document say, in order.
ANSWERS = {
    "README.md": (
        r"^HTTP/1\.1 200",
        r'"content":"I can remember what you tell me, .* write JSON and call tools\."',
    ),
    SERVER: (r'"text":"(red|blue) (fox|bear)"',),
}


def commands_of(document: str) -> list[str]:
    """Return the curl commands that ask this server, each with the lines that continue it."""
    found: list[str] = re.findall(r"^curl (?:.*\\\n)*.*$", text_of(document), re.MULTILINE)
    return [command for command in found if URL in command]


def test_every_document_with_a_curl_command_is_run_here() -> None:
    assert {name for name in documents() if commands_of(name)} == set(ANSWERS)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("document", ANSWERS)
def test_the_curl_commands_are_answered(server: ServerProcess, document: str) -> None:
    for command, answer in zip(commands_of(document), ANSWERS[document], strict=True):
        done = subprocess.run(
            ["bash", "-c", command.replace(URL, server.url).replace("curl", "curl -sSf", 1)],
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        assert re.search(answer, done.stdout), done.stdout
