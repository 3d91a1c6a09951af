"""README says what is so: its generated parts are up to date, its commands are the real ones.

`python -m tests.test_readme` writes the generated parts anew.
"""

import ast
import re
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from runtime.config import ServerConfig

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PACKAGES = ("jit_kernels", "mem_cache", "layers", "runtime")
TREE_WIDTH = 100
TEXT_COLUMN = 34


def flags_table() -> str:
    """Return a markdown table of every field of `ServerConfig`."""
    hints = typing.get_type_hints(ServerConfig)
    rows = ["| flag | default | what it does |", "|---|---|---|"]
    for item in fields(ServerConfig):
        flag, default = f"--{item.name.replace('_', '-')}", _default(item.default)
        text = item.metadata["help"].replace("|", r"\|")
        if typing.get_origin(hints[item.name]) is typing.Literal:
            text += "; one of " + ", ".join(
                f"`{value}`" for value in typing.get_args(hints[item.name])
            )
        rows.append(f"| `{flag}` | {default} | {text} |")
    return "\n".join(rows)


def _default(value: object) -> str:
    if value is None or value == ():
        return ""
    return "off" if value is False else f"`{value}`"


def file_tree() -> str:
    """Return the tree of source files, each with the beginning of its docstring."""
    lines = [_row(0, "launch_server.py", _summary(ROOT / "launch_server.py"))]
    for package in reversed(PACKAGES):
        lines += ["", *_folder(ROOT / package, 0)]
    return "\n".join(["```", *lines, "```"])


def _folder(folder: Path, depth: int) -> Iterator[str]:
    yield _row(depth, f"{folder.name}/", _summary(folder / "__init__.py"))
    if folder.parent.name == "jit_kernels":
        return
    inside = sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name))
    for path in inside:
        if path.is_dir() and (path / "__init__.py").is_file():
            yield from _folder(path, depth + 1)
        elif path.suffix == ".py" and path.name != "__init__.py":
            yield _row(depth + 1, path.name, _summary(path))


def _row(depth: int, name: str, text: str) -> str:
    return f"{'  ' * depth + name:<{TEXT_COLUMN}}{text}".rstrip()


def _summary(path: Path) -> str:
    """Return the first sentence of a module's docstring, as much of it as a row holds."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split())
    text = re.split(r"\.(?:\s|$)", text, maxsplit=1)[0]
    while len(text) > TREE_WIDTH - TEXT_COLUMN and re.search(r"[:;,(]", text):
        text = re.split(r"\s*[:;,(][^:;,(]*$", text, maxsplit=1)[0]
    return text


# What to read in a day, in this order: its files, what it says, and where that is done otherwise.
READING = (
    ("mem_cache", ".py .c .h", "the tree, its pools, their lifetimes", ""),
    (
        *("runtime/scheduler", ".py", "who computes what in a step, and what is kept of it"),
        "`grammar/`: what outputs may say",
    ),
    ("runtime/executor", ".py", "from the plan of a step to its tokens", ""),
    (
        *("layers", ".py", "the network in torch, after `layers/NETWORK.md`"),
        "`layers/fused/`: the same on a GPU",
    ),
    (
        *("jit_kernels", "reference.py", "each op in torch, which all else is judged by"),
        "its other files: Triton, CUDA, vendors",
    ),
    (
        *("runtime/tokenizer", ".py", "from a request to the scheduler, and back to text"),
        "`server/`, `chat/`, `engine/`, `lang/`: who asks",
    ),
)


def reading_table() -> str:
    """Return a markdown table of what to read first, with how long it is."""
    rows = ["| read | lines | it says | besides |", "|---|---|---|---|"]
    for name, ends, text, besides in READING:
        files = [
            path for path in (ROOT / name).rglob("*.*") if path.name.endswith((*ends.split(),))
        ]
        lines = sum(
            len(path.read_text("utf-8").splitlines()) for path in files if "fused" not in path.parts
        )
        shown = f"`{name}`" if ends.startswith(".") else f"`{ends}` in `{name}`"
        rows.append(f"| {shown} | {round(lines, -2):,} | {text} | {besides} |")
    return "\n".join(rows)


GENERATED = {"flags": flags_table, "tree": file_tree, "reading": reading_table}


def _between(name: str, text: str) -> re.Match[str]:
    found = re.search(rf"(<!-- {name} -->\n)(.*?)(\n<!-- /{name} -->)", text, re.DOTALL)
    assert found, f"README.md has no <!-- {name} --> part"
    return found


@pytest.mark.parametrize("name", GENERATED)
def test_the_generated_parts_are_up_to_date(name: str) -> None:
    shown = _between(name, README.read_text("utf-8"))[2]

    assert shown == GENERATED[name](), "run: python -m tests.test_readme"


def test_every_file_it_names_is_there() -> None:
    text = README.read_text("utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    named = set(re.findall(r"\]\(([^)#:]+)\)", prose))
    named |= set(re.findall(r"`((?:tests|runtime|layers|mem_cache|jit_kernels)/[\w./]+)`", text))

    assert named
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


def test_every_flag_it_mentions_exists() -> None:
    known = {item.name for item in fields(ServerConfig)}
    blocks = re.findall(r"python launch_server\.py([^\n`]*)", README.read_text("utf-8"))
    used = {flag.replace("-", "_") for line in blocks for flag in re.findall(r"--([\w-]+)", line)}

    assert used - {"help"} <= known


def test_its_python_examples_can_be_read() -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)

    assert examples
    for example in examples:
        ast.parse(example)


def test_ci_runs_the_commands_it_gives() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    lines = README.read_text("utf-8").splitlines()

    commands = re.findall(r'^(?:\w*install|test|lint)="(.*)"$', script, re.MULTILINE)

    assert len(commands) == 4
    assert [command for command in commands if command not in lines] == []


def rewrite() -> None:
    """Replace the generated parts of README.md."""
    text = README.read_text("utf-8")
    for name, make in GENERATED.items():
        found = _between(name, text)
        text = text[: found.start(2)] + make() + text[found.end(2) :]
    README.write_text(text, "utf-8")


if __name__ == "__main__":
    rewrite()
    sys.stdout.write("README.md is up to date\n")
