"""The shape of the house: who may import whom, sizes, twins, and what may not be there at all.

`python -m tests.test_floors` prints the size table: lines and tokens a line, file by file.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields

import pytest

from runtime.collector import paused_collector
from runtime.config import ServerConfig
from tests.testing.sources import (
    FLOORS,
    ROOT,
    committed,
    imports,
    module_of,
    sources,
    statements,
    tree_of,
)
from tests.without_twin import NO_TWIN

TOP_LEVEL = {"LICENSE", "README.md", "launch_server.py", "pyproject.toml", "tests", *FLOORS[:-1]}

# Inside runtime a module may import what its entry names, and its own group. The scheduler's side
# and the server's side meet only through messages: they are different processes.
BASE = {
    *("api_keys", "chat_template", "child", "collector", "command_line", "template_environment"),
    *("config", "device_sizes", "durations"),
    *("errors", "flag_hints", "heap", "json_log", "kv_events_config", "kv_hashes"),
    "parser_names",
    *("cache_messages", "messages", "open_files", "profile_messages"),
    *("packed_logprobs", "private_folder", "rank_memory"),
    "sampling",
    *("schema_reference", "share", "template_probe", "traces_endpoint"),
    "version",
}
RUNTIME_ORDER: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "chat": BASE,
    "default_model": BASE,
    "gguf": BASE,
    "ipc": BASE,
    "model_folder": BASE | {"default_model", "gguf"},
    # On the roof, too: a front that reads requests as a server does, and events as a router.
    "replicas": BASE | {"ipc", "launch", "scheduler", "server", "supervision", "tokenizer"},
    "scheduler_process": BASE | {"ipc"},
    "wire": BASE,
    "executor": BASE | {"ipc", "wire"},
    "grammar": BASE,
    "scheduler": BASE | {"ipc", "executor", "grammar", "wire"},
    "tokenizer": BASE | {"ipc"},
    "server": BASE | {"chat", "ipc", "tokenizer"},
    "supervision": BASE | {"ipc", "model_folder", "scheduler_process", "tokenizer"},
    "engine": BASE | {"ipc", "scheduler_process", "tokenizer", "server", "supervision"},
    # On the roof, beside the server: it must stay light, so it knows nothing of what it talks to.
    "lang": {"chat_template", "errors", "template_environment"},
    "scheduler_life": BASE | {"ipc", "scheduler_process", "tokenizer", "supervision"},
    "launch": BASE | {"scheduler_life", "tokenizer", "server", "supervision"},
}
# The one leg of the language that stands on the engine.
ON_THE_ENGINE = "runtime/lang/local.py"
# What an engine in somebody's program has no use for.
HTTP_LIBRARIES = ("fastapi", "httpx", "starlette", "uvicorn")

MAX_FILE_LINES = 400
MAX_KERNEL_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_C_COLUMNS = 100
READ_BY_CONFIG_ITSELF = {"insecure"}  # config.check is all there is to it
# Where the name to import is not the name to install.
DISTRIBUTIONS = {"deepseek_recipe": "deepseek-recipe", "zmq": "pyzmq"}
OPTIONAL_IMPORTS = {
    *("deep_gemm", "flash_attn_interface", "flash_mla", "sgl_kernel"),
    "gguf",
    "greenlet",
    "httpx",
    "opentelemetry",
    "ray",
    "triton",
    "xgrammar",
}
# Folders that name no group of a model's pools.
NO_MODEL = ("runtime/scheduler/", "runtime/wire/", "mem_cache/tree/")
GROUP_NAMES = re.compile(r"(?<![a-z])(c4|c128|indexers?|rings?)(?![a-z])", re.IGNORECASE)
FORBIDDEN_IMPORTS = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
FORBIDDEN_CALLS = {"compile", "eval", "exec", "torch.load", "torch.compile"}
MAY_RUN_DATA = re.compile(r"\b(compile|eval|exec|load)\b")


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    """Look for no garbage among millions of nodes, and keep none of them afterwards."""
    with paused_collector():
        yield
        tree_of.cache_clear()


def _fail_if(faults: Iterable[str]) -> None:
    listed = sorted(faults)
    assert not listed, "\n" + "\n".join(listed)


def test_imports_only_go_down() -> None:
    faults: list[str] = []
    for path in sources(*FLOORS):
        floor = FLOORS.index(module_of(path).split(".")[0])
        for name, line in imports(path):
            top = name.split(".")[0]
            if top == "tests" or (top in FLOORS and FLOORS.index(top) > floor):
                faults.append(f"{path}:{line} imports {name}, a floor above it")
    _fail_if(faults)


def test_inside_runtime_imports_follow_the_order() -> None:
    faults: list[str] = []
    for path in sources("runtime"):
        group = [*module_of(path).split("."), ""][1]
        if group and group not in RUNTIME_ORDER:
            faults.append(f"{path}: runtime.{group} has no place in RUNTIME_ORDER")
            continue
        allowed = RUNTIME_ORDER.get(group, set[str]()) | {group}
        allowed |= {"engine"} if path == ON_THE_ENGINE else set()
        for name, line in imports(path):
            parts = name.split(".")
            if parts[0] == "runtime" and (len(parts) == 1 or parts[1] not in allowed):
                faults.append(f"{path}:{line} imports {name}, which {group} may not")
    _fail_if(faults)


def test_no_module_is_part_of_an_import_cycle() -> None:
    paths = sources(*FLOORS)
    modules = {module_of(path) for path in paths}
    graph = {
        module_of(path): {name for name, _ in imports(path) if name in modules} for path in paths
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> str | None:
        if name in trail:
            return " -> ".join([*trail[trail.index(name) :], name])
        if name in done:
            return None
        found = (visit(other, (*trail, name)) for other in sorted(graph[name] - {name}))
        cycle = next((cycle for cycle in found if cycle), None)
        done.add(name)
        return cycle

    _fail_if(cycle for cycle in (visit(name, ()) for name in sorted(graph)) if cycle)


def test_the_language_loads_neither_torch_nor_a_socket() -> None:
    """Nor what its backends need: that comes on first use."""
    heavy = ("torch", "zmq", "numpy", "httpx", "greenlet", "runtime.engine")

    assert _loaded_by("runtime.lang", heavy) == "[]"


def test_the_engine_loads_neither_torch_nor_http() -> None:
    assert _loaded_by("runtime.engine", ("torch", *HTTP_LIBRARIES)) == "[]"


def test_the_tree_and_the_loop_of_a_worker_load_no_torch() -> None:
    assert _loaded_by("mem_cache.tree.radix, runtime.executor.worker", ("torch",)) == "[]"


def _loaded_by(module: str, suspects: tuple[str, ...]) -> str:
    """Return which of `suspects` a fresh interpreter has after importing `module`."""
    code = f"import sys, {module}; print([m for m in {suspects} if m in sys.modules])"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return told.stdout.strip()


def test_files_and_functions_keep_their_limits() -> None:
    faults: list[str] = []
    for path in sources(*FLOORS, "tests"):
        kernel = path.startswith("jit_kernels/") and path.endswith("_backend.py")
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        limit = MAX_KERNEL_FILE_LINES if kernel else MAX_FILE_LINES
        if lines > limit:
            faults.append(f"{path}: {lines} lines, limit {limit}")
        for node in statements(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not kernel:
                lines = _function_lines(node)
                if lines > MAX_FUNCTION_LINES:
                    faults.append(f"{path}:{node.lineno} {node.name}: {lines} lines")
    for path in (path for path in committed() if path.endswith((".c", ".h"))):
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        if len(lines) > MAX_FILE_LINES or max(map(len, lines)) > MAX_C_COLUMNS:
            faults.append(f"{path}: more than {MAX_FILE_LINES} lines or {MAX_C_COLUMNS} columns")
    _fail_if(faults)


def _function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring, which may be as long as the contract needs."""
    total = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        text = node.body[0]
        total -= (text.end_lineno or text.lineno) - text.lineno + 1
    return total


def test_every_source_file_has_its_twin() -> None:
    paths = set(committed())
    faults: list[str] = []
    for path in sources("mem_cache", "layers", "runtime"):
        # A contract is code of those who keep it.
        if path.endswith(("__init__.py", "/contract.py")):
            continue
        folder, _, name = path.rpartition("/")
        twin = f"tests/{folder}/test_{name}"
        if path in NO_TWIN and twin in paths:
            faults.append(f"{path} has {twin} after all: strike it from NO_TWIN")
        elif path not in NO_TWIN and twin not in paths:
            faults.append(f"{path} has no {twin}")
    ops = {path.split("/")[1] for path in sources("jit_kernels")} - {"__init__.py"}
    for op in ops:
        twin = f"test_{op.removesuffix('.py')}.py"
        if paths.isdisjoint(f"tests/jit_kernels/{home}{twin}" for home in ("", "kernels/")):
            faults.append(f"jit_kernels/{op} has no {twin}")
        if not op.endswith(".py") and f"jit_kernels/{op}/reference.py" not in paths:
            faults.append(f"jit_kernels/{op} has no reference.py")
    faults.extend(f"{path} is gone: strike it from NO_TWIN" for path in NO_TWIN.keys() - paths)
    _fail_if(faults)


def test_the_cache_tree_knows_no_tensor() -> None:
    _fail_if(
        f"{path}:{line} imports {name}"
        for path in sources("mem_cache")
        for name, line in imports(path)
        if name.split(".")[0] in {"torch", "jit_kernels"} and name != "jit_kernels.host_library"
    )


def test_the_runtime_knows_models_by_their_contract() -> None:
    _fail_if(
        f"{path}:{line} imports {name}"
        for path in sources("runtime")
        for name, line in imports(path)
        if re.match(r"layers\.models\.(?!contract|registry|json_fields|unit_views)", name)
    )


def test_scheduler_plans_and_tree_name_no_group_of_a_model() -> None:
    _fail_if(
        f"{path} names {found.group()}"
        for path in committed()
        if path.startswith(NO_MODEL) and path.endswith((".py", ".c", ".h"))
        for found in GROUP_NAMES.finditer((ROOT / path).read_text("utf-8"))
    )


def test_nothing_that_runs_data_is_used() -> None:
    faults: list[str] = []
    for path in sources(*FLOORS):
        for name, line in imports(path):
            if name.split(".")[0] in FORBIDDEN_IMPORTS:
                faults.append(f"{path}:{line} imports {name}")
        if not MAY_RUN_DATA.search((ROOT / path).read_text("utf-8")):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in FORBIDDEN_CALLS:
                faults.append(f"{path}:{node.lineno} calls {ast.unparse(node.func)}")
    _fail_if(faults)


def test_the_top_level_is_the_house() -> None:
    found = {path.split("/")[0] for path in committed()}

    assert {name for name in found if not name.startswith(".")} == TOP_LEVEL
    assert not [path for path in committed() if path.endswith("utils.py")]


def test_package_files_hold_a_docstring_and_at_most_names() -> None:
    """Op folders are the exception: their `__init__` is the op."""
    faults: list[str] = []
    for path in sources(*FLOORS, "tests"):
        if not path.endswith("__init__.py") or (path.count("/") == 2 and "jit_kernels/" in path):
            continue
        tree = tree_of(path)
        if not ast.get_docstring(tree):
            faults.append(f"{path} has no docstring")
        allowed = ast.ImportFrom | ast.Assign | ast.AnnAssign
        faults.extend(
            f"{path}:{node.lineno} is more than a name"
            for node in tree.body[1:]
            if not isinstance(node, allowed)
        )
    assert len(tree_of("runtime/__init__.py").body) == 1, "runtime/__init__.py imports nothing"
    _fail_if(faults)


def test_everything_public_has_a_docstring() -> None:
    def undocumented(path: str, node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if child.name.startswith("_"):
                continue
            if not ast.get_docstring(child) and not _is_override(child):
                yield f"{path}:{child.lineno} {child.name}"
            if isinstance(child, ast.ClassDef):
                yield from undocumented(path, child)

    faults = [path for path in sources(*FLOORS, "tests") if not ast.get_docstring(tree_of(path))]
    for path in sources(*FLOORS):
        faults.extend(undocumented(path, tree_of(path)))
    _fail_if(faults)


def _is_override(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(mark).split(".")[-1] == "override" for mark in node.decorator_list)


def test_every_setting_is_read_somewhere() -> None:
    """A flag that does nothing is a bug: each field is read off something called a config."""
    read: set[str] = set()
    for path in sources("runtime", "launch_server"):
        if path == "runtime/config.py":
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Attribute) and "config" in ast.unparse(node.value).lower():
                read.add(node.attr)

    names = {item.name for item in fields(ServerConfig)}
    _fail_if(f"nothing reads ServerConfig.{name}" for name in names - read - READ_BY_CONFIG_ITSELF)


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    used = {name.split(".")[0] for path in sources(*FLOORS) for name, _ in imports(path)}
    outside = used - set(sys.stdlib_module_names) - set(FLOORS)

    declared = {re.split(r"[^\w-]", spec)[0] for spec in project["dependencies"]}
    assert {DISTRIBUTIONS.get(name, name) for name in outside - OPTIONAL_IMPORTS} == declared


def test_no_path_of_a_machine_is_committed() -> None:
    """Spelled in halves, or this file would find itself."""
    marks = ["/" + name + "/" for name in ("work", "home", "root", "Users", "farm", "tmp")]
    faults: list[str] = []
    for path in committed():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            faults.extend(f"{path}:{number} has {mark}" for mark in marks if mark in line)
    _fail_if(faults)


def _size_table() -> Iterator[str]:
    """Yield the lines of each Python file, and of each package."""
    for package in (*FLOORS, "tests"):
        lines = {
            path: len((ROOT / path).read_text("utf-8").splitlines()) for path in sources(package)
        }
        yield from (f"  {path:<66}{count:>6}" for path, count in lines.items())
        yield f"{package:<68}{sum(lines.values()):>6}"


if __name__ == "__main__":
    sys.stdout.write("\n".join(_size_table()) + "\n")
