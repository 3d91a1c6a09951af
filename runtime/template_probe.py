"""Tries a checkpoint's chat template once, in a process of its own that may crash.

A template is a program: it can run for ever, or take all memory. Before a server serves one it
renders a few ordinary chats here, with the kernel's limits on time and memory.
"""

import resource
import subprocess
import sys
from pathlib import Path

from runtime.errors import ConfigError

__all__ = ["probe_template"]

LIMIT_S = 3
# Python and Jinja take a fifth of it.
MEMORY_BYTES = 1 << 29
_START_S = 60
_REFUSED = 3
_ROOT = Path(__file__).resolve().parent.parent
_CHATS = (
    [("user", "Hello")],
    [("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi."), ("user", "Again")],
)


def probe_template(template: str) -> None:
    """Raise ConfigError for a template that takes too long, or too much memory, for a short chat.

    A template that refuses a chat, or is none, is not judged here. Takes as long as Python starts.
    """
    command = [sys.executable, "-P", "-m", "runtime.template_probe", str(LIMIT_S)]
    try:
        done = subprocess.run(
            command,
            input=template.encode(errors="replace"),
            capture_output=True,
            check=False,
            timeout=_START_S + LIMIT_S,
            env={"PYTHONPATH": str(_ROOT)},
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(_told("stops for ever")) from None
    if done.returncode < 0:
        raise ConfigError(_told(f"takes more than {LIMIT_S} s"))
    if done.returncode == _REFUSED:
        raise ConfigError(_told(f"takes more than {MEMORY_BYTES >> 20} MiB of memory"))


def _told(what: str) -> str:
    return f"the chat template {what} for a chat of a few words"


def _main() -> int:
    """Render the chats with the template on stdin; nothing else of the process matters."""
    import jinja2

    from runtime.template_environment import render_once

    template = sys.stdin.buffer.read().decode(errors="replace")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(spent.ru_utime + spent.ru_stime) + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    try:
        for chat in _CHATS:
            render_once(template, chat)
    except MemoryError:
        return _REFUSED
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(_main())
