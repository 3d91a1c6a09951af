"""The documents are true: generated parts are up to date, links, files and flags exist.

`python -m tests.test_readme` rewrites the generated parts.
"""

import ast
import re
import sys
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from runtime.config import ServerConfig
from runtime.flag_hints import HINTS
from runtime.replicas.settings import build_parser
from tests.bench.serving.measured import measured_table
from tests.testing.documents import ROOT, documents, marked_part, text_of

PACKAGES = ("runtime", "layers", "mem_cache", "jit_kernels", "tests")
READMES = (
    "README.md",
    *(f"{package}/README.md" for package in PACKAGES),
    "runtime/lang/README.md",
    "runtime/replicas/README.md",
    "runtime/server/README.md",
)
MOST_LINES = 260  # of the top one
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


def file_tree(folder: str = "") -> str:
    """Return the tree of one package: each file with the beginning of its docstring.

    A folder that has a README of its own is one row; so is each op of `jit_kernels`. Of the
    checkout, and of `tests`, only folders are listed.
    """
    if folder in ("", "tests"):
        names = PACKAGES if not folder else _packages_in(ROOT / folder)
        rows = [_row(0, f"{name}/", _summary(ROOT / folder / name)) for name in names]
        top = [] if folder else [_row(0, "launch_server.py", _summary(ROOT / "launch_server.py"))]
    else:
        top, rows = [], list(_inside(ROOT / folder, 0))
    return "\n".join(["```", *top, *rows, "```"])


def _packages_in(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/__init__.py"))


def _inside(folder: Path, depth: int) -> Iterator[str]:
    """Yield the rows of what is in a package, files first."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.is_dir() and (path / "__init__.py").is_file():
            yield _row(depth, f"{path.name}/", _summary(path))
            if folder.name != "jit_kernels" and not (path / "README.md").exists():
                yield from _inside(path, depth + 1)
        elif path.suffix == ".py" and path.name != "__init__.py":
            yield _row(depth, path.name, _summary(path))


def _row(depth: int, name: str, text: str) -> str:
    return f"{'  ' * depth + name:<{TEXT_COLUMN}}{text}".rstrip()


def _summary(path: Path) -> str:
    """Return the first sentence of a module's docstring, as much of it as a row holds."""
    file = path / "__init__.py" if path.is_dir() else path
    text = " ".join((ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").split())
    text = re.split(r"\.(?:\s|$)", text, maxsplit=1)[0]
    while len(text) > TREE_WIDTH - TEXT_COLUMN and re.search(r"[:;,(]", text):
        text = re.split(r"\s*[:;,(][^:;,(]*$", text, maxsplit=1)[0]
    return text


# What to read in a day, in this order: a package, its files, its content, and what can wait.
READING = (
    ("mem_cache", ".py .c .h", "the tree, the pools, their lifetimes", ""),
    (
        *("runtime/scheduler", ".py", "which request computes what in a step; what stays cached"),
        "`runtime/grammar/`: structured output",
    ),
    ("runtime/executor", ".py", "from the plan of a step to its tokens", ""),
    (
        *("layers", ".py", "the network in torch, after `layers/NETWORK.md`"),
        "`layers/steps/chunks/`: steps on a GPU",
    ),
    (
        *("jit_kernels", "reference.py", "each operation in torch, the reference of all backends"),
        "the other files: C, Triton, CUDA, vendors",
    ),
    (
        *("runtime/tokenizer", ".py", "from a request to the scheduler, and back to text"),
        "`server/`, `chat/`, `engine/`, `lang/`: the callers",
    ),
)


def reading_table() -> str:
    """Return a markdown table of what to read first, with how long it is."""
    rows = ["| read | lines | content | later |", "|---|---|---|---|"]
    for name, ends, text, besides in READING:
        files = [
            path for path in (ROOT / name).rglob("*.*") if path.name.endswith((*ends.split(),))
        ]
        lines = sum(
            len(path.read_text("utf-8").splitlines())
            for path in files
            if "chunks" not in path.parts
        )
        shown = f"`{name}`" if ends.startswith(".") else f"`{ends}` in `{name}`"
        rows.append(f"| {shown} | {round(lines, -2):,} | {text} | {besides} |")
    return "\n".join(rows)


def _tree_of(readme: str) -> Callable[[], str]:
    return lambda: file_tree(readme.removesuffix("README.md").rstrip("/"))


GENERATED: dict[tuple[str, str], Callable[[], str]] = {
    **{(readme, "tree"): _tree_of(readme) for readme in READMES},
    ("README.md", "measured"): measured_table,
    ("runtime/README.md", "flags"): flags_table,
    ("runtime/README.md", "reading"): reading_table,
}


@pytest.mark.parametrize(("readme", "part"), GENERATED)
def test_the_generated_parts_are_up_to_date(readme: str, part: str) -> None:
    shown = marked_part(readme, part)[2]

    assert shown == GENERATED[readme, part]() + "\n", "run: python -m tests.test_readme"


def test_every_readme_is_checked_here() -> None:
    found = {path for path in documents() if path.endswith("README.md")}

    assert found == {*READMES, "tests/bench/README.md"}


def test_the_top_one_stays_short() -> None:
    assert len(text_of("README.md").splitlines()) <= MOST_LINES


def test_every_source_file_has_one_row_in_the_trees() -> None:
    """By folder and name: a package moved under a README of its own leaves no gap."""
    shown: list[str] = []
    for readme in READMES[1:]:
        home = readme.removesuffix("README.md")
        trail: list[str] = []
        for line in marked_part(readme, "tree")[2].splitlines()[1:-1]:
            name = line.split()[0]
            trail = [*trail[: (len(line) - len(line.lstrip())) // 2], name]
            shown += [home + "".join(trail)] if name.endswith(".py") else []
    source = [
        str(path.relative_to(ROOT))
        for package in PACKAGES[:-1]
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
        and not (package == "jit_kernels" and path.parent != ROOT / package)
    ]

    assert sorted(shown) == sorted(source)


def _prose(document: str) -> str:
    """Return a document without its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", text_of(document), flags=re.DOTALL | re.MULTILINE)


def _anchors(document: str) -> set[str]:
    """Return the anchors of a document's headings, spelt as GitHub does."""
    heads = re.findall(r"^#+ (.*)$", _prose(document), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", head).strip().lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


def test_every_link_leads_somewhere() -> None:
    faults: list[str] = []
    links = 0
    for document in documents():
        for link in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
            if re.match(r"[a-z]+:", link):
                continue
            links += 1
            path, _, anchor = link.partition("#")
            goal = ((ROOT / document).parent / path).resolve() if path else ROOT / document
            if not goal.is_relative_to(ROOT) or not goal.exists():
                faults.append(f"{document}: there is no {link}")
            elif anchor and anchor not in _anchors(str(goal.relative_to(ROOT))):
                faults.append(f"{document}: {path or document} has no heading #{anchor}")

    assert links
    assert not faults, "\n".join(faults)


def test_every_file_they_name_is_there() -> None:
    """From the checkout's root, or from the document's folder."""
    faults: list[str] = []
    ops = {path.name for path in (ROOT / "jit_kernels").glob("*/*.*")}
    for document in READMES:
        for name in re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", _prose(document)):
            first = name.split("/")[0]
            known = first in PACKAGES and "/" in name
            if not known and not name.endswith((".py", ".c", ".h", ".md", ".csv")):
                continue
            if name in ops:
                continue  # a file that every op has, such as reference.py
            if not (ROOT / name).exists() and not ((ROOT / document).parent / name).exists():
                faults.append(f"{document}: there is no {name}")

    assert not faults, "\n".join(faults)


def test_every_module_they_run_is_there() -> None:
    """In commands and in prose: `python -m tests...`."""
    faults: list[str] = []
    for document in documents():
        for name in re.findall(r"python -m (tests[\w.]*\w)", text_of(document)):
            path = ROOT / name.replace(".", "/")
            if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists():
                faults.append(f"{document}: there is no {name}")

    assert not faults, "\n".join(faults)


def test_every_flag_of_the_server_they_mention_exists() -> None:
    """In commands, and in the prose of all documents but those about tests' own flags."""
    known = {item.name.replace("_", "-") for item in fields(ServerConfig)}
    replicas = {word.removeprefix("--") for word in build_parser()._option_string_actions}
    foreign = {flag.removeprefix("--") for hint in HINTS for flag in hint.flags.split()}
    faults: list[str] = []
    for document in READMES:
        whole = text_of(document).replace("\\\n", " ")
        lines = re.findall(r"python launch_server\.py([^\n`]*)", whole)
        used = {flag for line in lines for flag in re.findall(r"--([\w-]+)", line)} - {"help"}
        if not document.startswith("tests/"):
            used |= set(re.findall(r"`--([\w-]+)", _prose(document))) - foreign
        if document.startswith("runtime/replicas/"):
            used -= replicas
        faults += [f"{document}: there is no --{flag}" for flag in sorted(used - known)]

    assert not faults, "\n".join(faults)


def test_every_backend_they_force_exists() -> None:
    """`KERNEL_<OP>=name`, and a bare `KERNEL_<OP>`: the op is selected, with such a backend."""
    source = "\n".join(
        path.read_text("utf-8") for path in (ROOT / "jit_kernels").glob("*/__init__.py")
    )
    named = [
        (document, *found)
        for document in READMES
        for found in re.findall(r"KERNEL_([A-Z]\w*)(?:=(\w+))?", text_of(document))
    ]

    assert named
    for document, op, backend in named:
        stem = op.lower().removesuffix("_invariant")
        assert re.search(rf'"{stem}"', source), f"{document}: no op {op}"
        assert not backend or f'Backend("{backend}"' in source, f"{document}: no {backend}"


def test_their_python_examples_can_be_read() -> None:
    examples = [
        example
        for document in documents()
        for example in re.findall(r"```python\n(.*?)```", text_of(document), re.DOTALL)
    ]

    assert examples
    for example in examples:
        ast.parse(example)


def test_ci_runs_the_commands_that_the_readme_gives() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    lines = text_of("README.md").splitlines()

    commands = re.findall(r'^(?:\w*install|test|lint)="(.*)"$', script, re.MULTILINE)

    assert len(commands) == 4
    assert [command for command in commands if command not in lines] == []


def rewrite() -> None:
    """Replace the generated parts of all documents."""
    for (readme, part), make in GENERATED.items():
        found = marked_part(readme, part)
        text = found.string[: found.start(2)] + make() + "\n" + found.string[found.end(2) :]
        (ROOT / readme).write_text(text, "utf-8")


if __name__ == "__main__":
    rewrite()
    sys.stdout.write("the documents are up to date\n")
