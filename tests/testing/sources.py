"""The checkout's Python sources as syntax trees: what they import, and every statement of them."""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "FLOORS",
    "ROOT",
    "committed",
    "imports",
    "module_of",
    "sources",
    "statements",
    "tree_of",
]

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("jit_kernels", "mem_cache", "layers", "runtime", "launch_server")


@functools.cache
def committed() -> tuple[str, ...]:
    """Paths of everything git tracks, or would: nothing ignored, nothing deleted."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(path for path in set(listing.split("\0")) if (ROOT / path).is_file()))


@functools.cache
def sources(*folders: str) -> list[str]:
    """Committed Python files under these packages (or of these names at the top)."""
    starts = tuple(f"{folder}/" for folder in folders) + tuple(f"{name}.py" for name in folders)
    return [path for path in committed() if path.endswith(".py") and path.startswith(starts)]


@functools.cache
def tree_of(path: str) -> ast.Module:
    """Return the syntax tree of a file, parsed once."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=path)


@functools.cache
def module_of(path: str) -> str:
    """Return the dotted name of a file's module; a package's for its `__init__`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield every statement below a node: all that imports or defines, without expressions."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        found = getattr(node, name, ())
        # A lambda's body, or that of a conditional expression, is none.
        for child in found if isinstance(found, list) else ():
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


@functools.cache
def _modules() -> set[str]:
    return {module_of(source) for source in sources(*FLOORS)}


@functools.cache
def imports(path: str) -> list[tuple[str, int]]:
    """Return (dotted name, line) of all imports; `from a import b` is a.b if that is a module."""
    module = module_of(path)
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    found: list[tuple[str, int]] = []
    for node in statements(tree_of(path)):
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            stem = ".".join(parts) if node.level else ""
            base = ".".join(part for part in (stem, node.module) if part)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.append((full if full in _modules() else base, node.lineno))
    return found
