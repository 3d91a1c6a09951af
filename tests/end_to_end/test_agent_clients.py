"""Clients of agents with their default settings, as released, against the default model.

Each calls a tool and gets its result over two turns, reads a stream, and asks for an object. What
the model says of a tool's result is not judged, only that the protocol works.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.client_environments import node_with, python_with, run
from tests.testing.server_process import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PERSON = {"name": "Lena", "age": 31}

OPENAI_AGENTS = '''
import asyncio, json, os
from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

class Person(BaseModel):
    name: str
    age: int

CALLS = []

@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city"""
    CALLS.append(city)
    return "sunny"

async def main():
    set_tracing_disabled(True)
    for model in ("default", OpenAIChatCompletionsModel("default", AsyncOpenAI())):
        agent = Agent(name="Helper", tools=[get_weather], model=model)
        answer = await Runner.run(agent, "What is the weather in Oslo?")
        streamed = Runner.run_streamed(agent, "What is the weather in Rome?")
        events = [event.type async for event in streamed.stream_events()]
        clerk = Agent(name="Clerk", output_type=Person, model=model)
        text = "Lena is 31 years old. Give her name and age as JSON."
        person = (await Runner.run(clerk, text)).final_output.model_dump()
        texts = [answer.final_output, streamed.final_output]
        print(json.dumps({"calls": CALLS, "texts": texts, "events": events, "person": person}))
        CALLS.clear()

asyncio.run(main())
'''

LANGCHAIN = '''
import json
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

class Person(BaseModel):
    """A person"""
    name: str
    age: int

@tool
def get_weather(city: str) -> str:
    """Get the weather of a city"""
    CALLS.append(city)
    return "sunny"

CALLS = []

def turns(model, city, answer):
    """Return the last answer of a conversation; `answer` gets the next one."""
    messages = [HumanMessage(f"What is the weather in {city}?")]
    for _ in range(2):
        messages.append(answer(model, messages))
        messages += [get_weather.invoke(call) for call in messages[-1].tool_calls]
    return messages[-1]

def streamed(model, messages):
    first, *others = model.stream(messages)
    for chunk in others:
        first += chunk
    return first

for responses in (False, True):
    model = ChatOpenAI(model="default", use_responses_api=responses)
    bound = model.bind_tools([get_weather])
    answers = [turns(bound, "Oslo", lambda m, x: m.invoke(x)), turns(bound, "Rome", streamed)]
    texts = [str(answer.text) for answer in answers]
    shaped = model.with_structured_output(Person)
    person = shaped.invoke("Lena is 31 years old. Give her name and age as JSON.").model_dump()
    print(json.dumps({"calls": CALLS, "texts": texts, "person": person}))
    CALLS.clear()
'''

AI_SDK = """
import { createOpenAI } from '@ai-sdk/openai';
import { Output, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const openai = createOpenAI();
for (const model of [openai('default'), openai.chat('default')]) {
  const calls = [];
  const tools = {
    get_weather: tool({
      description: 'Get the weather of a city',
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => { calls.push(city); return 'sunny'; },
    }),
  };
  const options = { model, tools, stopWhen: stepCountIs(2) };
  const first = await generateText({ ...options, prompt: 'What is the weather in Oslo?' });
  const second = streamText({
    ...options, prompt: 'What is the weather in Rome?', onError({ error }) { throw error; },
  });
  const events = [];
  for await (const part of second.fullStream) events.push(part.type);
  const { output } = await generateText({
    model,
    output: Output.object({ schema: z.object({ name: z.string(), age: z.number() }) }),
    prompt: 'Lena is 31 years old. Give her name and age as JSON.',
  });
  const texts = [first.text, await second.text];
  console.log(JSON.stringify({ calls, texts, events, person: output }));
}
"""

LITELLM = """
import json, os
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.suppress_debug_info = True
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Get the weather of a city", "parameters": CITY}
TOOLS = [{"type": "function", "function": WEATHER}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}

for model, base in (("anthropic/default", URL), ("openai/default", URL + "/v1")):
    def ask(messages, **options):
        given = {"model": model, "api_base": base, "api_key": "none", "max_tokens": 300}
        return litellm.completion(messages=messages, **given, **options)

    messages, calls, texts = [], [], []
    for city in ("Oslo", "Rome"):
        messages.append({"role": "user", "content": f"What is the weather in {city}?"})
        if city == "Oslo":
            answer = ask(messages, tools=TOOLS).choices[0].message
        else:
            chunks = list(ask(messages, tools=TOOLS, stream=True))
            answer = litellm.stream_chunk_builder(chunks, messages=messages).choices[0].message
        messages.append(answer)
        for call in answer.tool_calls:
            calls.append(json.loads(call.function.arguments)["city"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
        messages.append(ask(messages, tools=TOOLS).choices[0].message)
        texts.append(messages[-1].content)
    text = "Lena is 31 years old. Give her name and age as JSON."
    told = ask([{"role": "user", "content": text}], response_format=FORMAT).choices[0].message
    person = json.loads(told.content)
    print(json.dumps({"calls": calls, "texts": texts, "person": person}))
"""

OUTLINES = """
import outlines, openai
from typing import Literal

client = openai.OpenAI()
for make in (outlines.from_vllm, outlines.from_sglang):
    model = make(client, "default")
    options = {"max_tokens": 200}
    print(model("Is it?", Literal["yes", "no"], **options))
    print(model("A number?", outlines.regex("[0-9]{3}"), **options))
    print("".join(model.stream("Which?", outlines.types.CFG('root ::= "a" | "b"'), **options)))
"""

CODEX = """
model = "default"
model_provider = "umbra"

[model_providers.umbra]
name = "Umbra"
base_url = "{url}/v1"
"""


@pytest.fixture(scope="module")
def server(default_server: ServerProcess) -> ServerProcess:
    """What `python launch_server.py` serves."""
    return default_server


def settings(server: ServerProcess) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none"}


def check(printed: str) -> list[dict[str, Any]]:
    """Check what a program prints for the Responses API and for chats; return it."""
    both = [json.loads(line) for line in printed.splitlines()]
    assert len(both) == 2
    for told in both:
        assert told["calls"] == ["Oslo", "Rome"]
        assert all(told["texts"])
        assert told["person"] == PERSON
    return both


def test_openai_agents_call_tools_stream_and_fill_objects(
    server: ServerProcess, tmp_path: Path
) -> None:
    python = python_with(tmp_path / "venv", "openai-agents==0.24.0")

    both = check(run([python, "-c", OPENAI_AGENTS], tmp_path, **settings(server)))

    assert all("raw_response_event" in told["events"] for told in both)


def test_langchain_calls_tools_streams_and_fills_objects(
    server: ServerProcess, tmp_path: Path
) -> None:
    python = python_with(tmp_path / "venv", "langchain-openai==1.7.4")

    check(run([python, "-c", LANGCHAIN], tmp_path, **settings(server)))


def test_litellm_calls_tools_streams_and_fills_objects(
    server: ServerProcess, tmp_path: Path
) -> None:
    python = python_with(tmp_path / "venv", "litellm==1.110.2")

    check(run([python, "-c", f"URL = {server.url!r}\n{LITELLM}"], tmp_path))


def test_outlines_constrains_as_for_vllm_and_sglang(server: ServerProcess, tmp_path: Path) -> None:
    python = python_with(tmp_path / "venv", "outlines==1.3.3", "openai")

    told = run([python, "-c", OUTLINES], tmp_path, **settings(server)).split()

    assert len(told) == 6
    for choice, number, letter in (told[:3], told[3:]):
        assert choice in ("yes", "no")
        assert len(number) == 3
        assert number.isdigit()
        assert letter in "ab"


def test_the_ai_sdk_calls_tools_streams_and_fills_objects(
    server: ServerProcess, tmp_path: Path
) -> None:
    node = node_with(tmp_path / "sdk", "ai@6.0.326", "@ai-sdk/openai@3.0.141", "zod@4")
    program = tmp_path / "sdk" / "program.mjs"
    program.write_text(AI_SDK)

    both = check(run([node, program], tmp_path, **settings(server)))

    assert all("tool-result" in told["events"] for told in both)
    assert not any("error" in told["events"] for told in both)


def test_codex_answers_with_all_its_default_tools(server: ServerProcess, tmp_path: Path) -> None:
    node = node_with(tmp_path / "codex", "@openai/codex@0.171.0")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(CODEX.format(url=server.url))
    codex = tmp_path / "codex" / "node_modules" / ".bin" / "codex"

    command = [node, codex, "exec", "--skip-git-repo-check", "What is 12 + 30?"]
    printed = run(command, tmp_path, CODEX_HOME=str(home))

    assert printed.strip().endswith("42")
