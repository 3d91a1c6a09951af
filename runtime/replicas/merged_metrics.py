"""Metrics of all replicas as one text, each sample with the label `replica`."""

import re
from collections.abc import Mapping

__all__ = ["merge_metrics"]

# name, labels with their braces or nothing, the rest of the line. A label's value may hold "}".
_SAMPLE = re.compile(r'([A-Za-z_:][\w:]*)(\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?(\s.*)')
_ABOUT = re.compile(r"# (?:HELP|TYPE|UNIT) (\S+)")


def merge_metrics(texts: Mapping[str, str]) -> str:
    """Return Prometheus' text format for the texts of several replicas, by name.

    The lines of a metric stand together, as the format demands, after what the first replica
    that has it says about it.
    """
    about: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica, text in texts.items():
        described: dict[str, list[str]] = {}
        current = ""
        for line in text.splitlines():
            if found := _ABOUT.match(line):
                current = found[1]
                described.setdefault(current, []).append(line)
            elif found := _SAMPLE.fullmatch(line):
                # Names of a histogram's samples begin with its own.
                family = current if current and found[1].startswith(current) else found[1]
                samples.setdefault(family, []).append(_labelled(found, replica))
        for family, lines in described.items():
            about.setdefault(family, lines)
    lines = [
        line
        for family in {**about, **samples}
        for line in [*about.get(family, []), *samples.get(family, [])]
    ]
    return "\n".join([*lines, ""])


def _labelled(sample: re.Match[str], replica: str) -> str:
    value = replica.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    inside = (sample[2] or "{}")[1:-1].rstrip(",")
    labels = ",".join(part for part in (f'replica="{value}"', inside) if part)
    return f"{sample[1]}{{{labels}}}{sample[3]}"
