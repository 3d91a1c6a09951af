"""Programs in the call forms of public ones, on all three backends."""

import pytest

from runtime.errors import BadRequest
from tests.runtime.lang.three_backends import NAMES, Model, make_backend
from tests.testing.lang_programs import chats, texts, trees

CASES = {**texts.CASES, **trees.CASES, **chats.CASES}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_a_program_runs_to_its_end(name: str, case: str) -> None:
    model = Model()
    backend = make_backend(name, model)

    if name == "openai" and CASES[case].native:
        with pytest.raises(BadRequest, match=r'(gen|select)\("\w+"\): .*(use Endpoint|Endpoint$)'):
            CASES[case].run(backend)
        return
    states = CASES[case].run(backend)

    assert len(states) == len(CASES[case].entries)
    for state in states:
        assert state.error() is None
        assert state.text() or all(state.ret_value)
        assert all(state[name] for name in state.executor.variables)
