"""What is fuzzed: where inputs come from, and what must be true of each."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

__all__ = ["CORPUS", "Target", "assert_one_line"]

CORPUS = Path(__file__).resolve().parent / "corpus"
_ALL = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@dataclass(frozen=True, slots=True)
class Target:
    """One reader of bytes.

    inputs    draws an input
    check     raises, anything, where an input is not taken as it must be
    examples  how many inputs the suite draws
    """

    name: str
    inputs: st.SearchStrategy[bytes]
    check: Callable[[bytes], None]
    examples: int = 40

    def run(
        self, examples: int, *, seed: int, before: Callable[[bytes], None] | None = None
    ) -> None:
        """Check so many inputs. Raises what the smallest failing one raised.

        before  called with each input first
        """

        @seeded(seed)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=_ALL,
        )
        @given(self.inputs)
        def one(data: bytes) -> None:
            if before is not None:
                before(data)
            self.check(data)

        one()

    def corpus(self) -> Iterator[Path]:
        """Yield the files of inputs that were found to matter."""
        folder = CORPUS / self.name
        yield from sorted(folder.iterdir()) if folder.is_dir() else ()


def assert_one_line(fault: BaseException, places: Sequence[Path] = ()) -> None:
    """Fail unless an error says something, in one line of bounded length.

    places  folders whose paths are no part of that length
    """
    text = str(fault)
    for place in places:
        text = text.replace(str(place), "")
    assert text.strip(), f"{type(fault).__name__} says nothing"
    assert text.isprintable() or "\n" not in text, text
    assert len(text) < 1900, f"{len(text)} characters: {text[:200]}"
