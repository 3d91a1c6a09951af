"""Whatever one request asks, the streams of others pause for no more than a prefill chunk.

It measures time, on a machine that should have nothing else to do: see `stream_gaps.py`.
"""

from collections.abc import Iterator

import pytest

from tests.end_to_end.heavy_requests import ATTACKS
from tests.end_to_end.stream_gaps import FLAGS, Gaps, gaps_beside
from tests.testing.server_process import ServerProcess, running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MORE_S = 0.25
# What else a machine does only lengthens a gap: the shortest one counts.
TRIES = 3


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server of the default model, as it is started without flags."""
    with running_server(*FLAGS, check=False) as server:
        yield server


@pytest.fixture(scope="module")
def chunk(server: ServerProcess) -> Gaps:
    """The gaps beside a plain long prompt: those of its chunks."""
    return gaps_beside(server, "chunk")


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "chunk"])
def test_no_gap_is_longer_than_a_chunk_and_a_quarter_of_a_second(
    server: ServerProcess, chunk: Gaps, name: str
) -> None:
    seen: list[Gaps] = []
    for _ in range(TRIES):
        seen.append(gaps_beside(server, name))
        stream_s, health_s = (
            min(getattr(gaps, what) for gaps in seen) for what in ("stream_s", "health_s")
        )
        if stream_s <= chunk.stream_s + MORE_S and health_s <= chunk.health_s + MORE_S:
            break
    else:
        raise AssertionError(f"{seen}, beside a plain prompt {chunk}")

    assert {gaps.status for gaps in seen} <= {200, 400}
    assert server.client.get("/health_generate").status_code == 200
