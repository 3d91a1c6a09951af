"""Scripts that tests run in an interpreter of their own."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def script_environment(**more: str) -> dict[str, str]:
    """Return the environment of a script that can import what this process can.

    The checkout comes first; other packages may lie where only PYTHONPATH says.
    """
    given = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), *([given] if given else [])])
    return {**os.environ, "PYTHONPATH": path, **more}
