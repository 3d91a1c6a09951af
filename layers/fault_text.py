"""Texts of faults, which quote what a file holds: one value can be as long as the file."""

__all__ = ["MOST_CHARS", "bounded"]

MOST_CHARS = 1500


def bounded(text: str) -> str:
    """Return a text of at most `MOST_CHARS` characters; of a longer one the middle is left out."""
    if len(text) <= MOST_CHARS:
        return text
    kept = (MOST_CHARS - 5) // 2
    return f"{text[:kept]} ... {text[-kept:]}"
