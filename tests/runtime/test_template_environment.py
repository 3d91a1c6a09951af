"""Templates render here as in transformers, of which the environment is a copy."""

from datetime import datetime
from typing import Any

import jinja2
import pytest

from runtime.template_environment import template_environment
from tests.runtime.chat.families import FAMILIES, family_encoder, family_tokenizer, shown_tools

NOW = datetime(2026, 2, 3)
CALL = {"name": "get_weather", "arguments": {"city": "<Oslo> é"}}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a12345678", "function": CALL}]},
    {"role": "tool", "content": "rain", "tool_call_id": "a12345678", "name": "get_weather"},
]


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gpt_oss"])
def test_a_familys_chat_is_what_transformers_renders(name: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    template = FAMILIES[name][0].replace("strftime_now('%Y-%m-%d')", "'today'")

    [expected], _ = utils.render_jinja_template(
        [CHAT], tools=shown_tools(), chat_template=template, add_generation_prompt=True
    )

    environment = template_environment(NOW)
    rendered = environment.from_string(template).render(
        messages=CHAT, tools=shown_tools(), add_generation_prompt=True
    )
    assert rendered == expected
    assert family_encoder(name).has_template
    assert family_tokenizer(name).encode(rendered).ids


def test_the_time_stands_still() -> None:
    template = template_environment(NOW).from_string("{{ strftime_now('%d %b %Y') }}")

    assert template.render() == "03 Feb 2026"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.mro() }}",
        "{{ raise_exception('no') }}",
    ],
)
def test_a_template_changes_nothing_and_reaches_nothing(template: str) -> None:
    with pytest.raises(jinja2.TemplateError):
        template_environment(NOW).from_string(template).render(messages=[])
