"""Where and from what a figure came: the machine, and the commit of this checkout."""

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def machine() -> str:
    """Return the processors of this machine, and its GPUs where it says which."""
    gpus = _told("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    parts = [f"{os.cpu_count()} CPU {platform.machine()}"]
    parts += [f"{gpus.count(name)} x {name}" for name in sorted(set(gpus))]
    return ", ".join(parts)


def commit() -> str:
    """Return the short hash of this checkout, marked where it has changes; else "unknown"."""
    told = _told("git", "describe", "--always", "--dirty", "--exclude=*")
    return told or "unknown"


def _told(*command: str) -> str:
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
