"""Programs take from the cache what earlier requests have computed, by the ids of their prompts."""

from collections.abc import Iterator

import pytest

from runtime.engine.engine import Engine
from runtime.lang.backend import Backend
from runtime.lang.endpoint import Endpoint
from runtime.lang.local import Local
from runtime.lang.openai_endpoint import OpenAI
from tests.end_to_end.cache_ledger import CacheLedger
from tests.testing.lang_programs import chats, texts, trees
from tests.testing.server_process import ServerProcess

CASES = {**texts.CASES, **trees.CASES, **chats.CASES}
# What the server leaves no resume point for: `ResumePolicy.branch_min_tokens`.
SMALL = 64
QUICK = ("few-shot questions", "turns of text", "documents", "sweep", "fields", "simulated")
# Each continues what it wrote itself, and no stop string ends that.
EXACT = ("turns of text", "two questions", "simulated")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The default model."""
    with Engine(random_seed=0) as engine:
        yield engine


@pytest.fixture(scope="module")
def ledger(engine: Engine) -> CacheLedger:
    """What its requests take from the cache."""
    return CacheLedger(engine)


def check(case: str, engine: Engine, ledger: CacheLedger) -> None:
    assert engine.flush_cache()
    ledger.clear()

    CASES[case].run(Local(engine))

    assert len(ledger.entries) > 0
    lost = [entry.ideal - entry.cached for entry in ledger.entries]
    assert max(lost) < SMALL
    if case in EXACT:
        assert max(lost) <= 0


@pytest.mark.parametrize("case", QUICK)
def test_requests_of_a_program_reuse_what_is_there(
    engine: Engine, ledger: CacheLedger, case: str
) -> None:
    check(case, engine, ledger)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case not in QUICK])
def test_requests_of_all_programs_do(engine: Engine, ledger: CacheLedger, case: str) -> None:
    check(case, engine, ledger)


@pytest.mark.slow
def test_all_programs_run_over_http(default_server: ServerProcess) -> None:
    url, thoughtless = default_server.url, {"reasoning_effort": "none"}
    openai = OpenAI("default", base_url=f"{url}/v1", extra_body=thoughtless)
    backends: list[Backend] = [Endpoint(url), openai]
    for backend in backends:
        for case in CASES.values():
            if backend is not openai or not case.native:
                assert all(state.error() is None for state in case.run(backend))
