"""Environments of clients: each has its packages, from PyPI or npm, in a folder of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

INSTALL_S, RUN_S = 600, 120
# What pip and npm write where they do not reach their registry.
_UNREACHABLE = (
    "NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "Failed to establish",
    "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT",
)  # fmt: skip


def python_with(folder: Path, *packages: str) -> Path:
    """Return the interpreter of a new environment with `packages`; skip where there is no PyPI."""
    _install([sys.executable, "-m", "venv", str(folder)], folder.parent, "PyPI")
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--retries", "1", *packages]
    _install(pip, folder.parent, "PyPI")
    return python


def node_with(folder: Path, *packages: str) -> Path:
    """Install `packages` into `folder` and return node; skip where node or npm's registry lacks."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text('{"private": true}')
    _install([npm, "install", "--silent", "--fetch-retries", "1", *packages], folder, "npm")
    return Path(node)


def run(command: Sequence[str | Path], folder: Path, **variables: str) -> str:
    """Return what a client's program prints; fail with all it wrote if it fails."""
    # Neither this checkout nor the machine's settings of the client.
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, "HOME": str(folder), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def _install(command: Sequence[str], folder: Path, registry: str) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    said = done.stdout + done.stderr
    if done.returncode and any(word in said for word in _UNREACHABLE):
        pytest.skip(f"{registry} cannot be reached")
    assert done.returncode == 0, said
