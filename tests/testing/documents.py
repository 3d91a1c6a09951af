"""The documents of the checkout: their paths, texts, sections and programs."""

import functools
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@functools.cache
def documents() -> tuple[str, ...]:
    """Return the paths of all Markdown files that git tracks or would track."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z", "*.md"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return tuple(sorted(path for path in set(listing.split("\0")) if (ROOT / path).is_file()))


def text_of(document: str) -> str:
    """Return the text of a document."""
    return (ROOT / document).read_text("utf-8")


def section(document: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading."""
    pattern = rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)"
    found = re.search(pattern, text_of(document), re.MULTILINE | re.DOTALL)
    assert found, f"{document} has no section {heading}"
    return found[1]


def program(document: str, heading: str) -> str:
    """Return the first Python block of a section."""
    found = re.search(r"```python\n(.*?)```", section(document, heading), re.DOTALL)
    assert found, f"{document}: the section {heading} has no program"
    return found[1]


def marked_part(document: str, mark: str) -> re.Match[str]:
    """Return what is between `<!-- mark -->` and `<!-- /mark -->`, as group 2."""
    pattern = rf"(<!-- {mark} -->\n)(.*?)(<!-- /{mark} -->)"
    found = re.search(pattern, text_of(document), re.DOTALL)
    assert found, f"{document} has no <!-- {mark} --> part"
    return found


def marked_program(document: str, mark: str) -> str:
    """Return the Python block between two marks."""
    found = re.search(r"```python\n(.*?)```", marked_part(document, mark)[2], re.DOTALL)
    assert found, f"{document}: <!-- {mark} --> has no program"
    return found[1]
