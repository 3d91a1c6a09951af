"""Chat templates that loop or allocate end in one clear line; ordinary ones are served."""

import pytest

from runtime.errors import ConfigError
from runtime.template_probe import probe_template
from tests.runtime.server.engine import TEMPLATE

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GROWS = (
    "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "text", "limit_s"),
    [(LOOPS, "takes more than . s", 1), (GROWS, "MiB of memory", 20)],
)
def test_a_template_that_loops_or_allocates_is_refused_in_one_line(
    template: str, text: str, limit_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.template_probe.LIMIT_S", limit_s)

    with pytest.raises(ConfigError, match=text) as refused:
        probe_template(template)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("template", [TEMPLATE, "{{ raise_exception('no') }}", "{% if %}"])
def test_other_templates_are_judged_where_they_are_used(template: str) -> None:
    probe_template(template)
