"""Tests of runtime.chat.dsml_heads: where a tag's head ends, and what it says."""

import pytest

from runtime.chat.dsml_heads import invoked_name, is_head, parameter_of


def head_of(text: str, *declared: str) -> str | None:
    """Return the head that a text begins with."""
    ends = [k + 1 for k, char in enumerate(text) if char == ">"]
    return next((text[:end] for end in ends if is_head(text[:end], declared)), None)


@pytest.mark.parametrize(
    ("head", "name", "is_text"),
    [
        ('parameter name="s" string="true">', "s", True),
        ('parameter name="s" string="false">', "s", False),
        ('parameter name="a>b" string="false">', "a>b", False),
        ('parameter name="q"uote" string="true">', 'q"uote', True),
        ('parameter name="a\nb" string="true">', "a\nb", True),
        (' parameter  name = "s"  string=true >', "s", True),
        ('parameter name="s">', "s", None),
        ('parameter name="s" string="maybe">', "s", None),
        ('parameter name="">', "", None),
    ],
)
def test_a_parameters_head_is_read(head: str, name: str, is_text: bool | None) -> None:
    assert head_of(head + 'more" string="true">and more>') == head
    assert parameter_of(head) == (name, is_text)


def test_a_name_that_looks_like_the_end_of_a_head_is_known_by_its_tool() -> None:
    head = 'parameter name="p">x" string="true">'

    assert head_of(head + ">", 'p">x') == head
    assert head_of(head, "p") == 'parameter name="p">'


@pytest.mark.parametrize("head", ["parameter>", "parameter title=>", 'parameter name="s>'])
def test_a_parameter_may_have_no_name(head: str) -> None:
    assert parameter_of(head) is None


def test_the_end_of_a_name_is_not_looked_for_without_end() -> None:
    assert head_of('parameter name="' + ">" * 100) is None
    assert head_of('parameter name="' + ">" * 5000) is not None


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ('invoke name="f">', "f"),
        (' invoke  name = "f" />', "f"),
        ('invoke name="a>b">', "a>b"),
        ("invoke>", None),
        ('invoke title="f">', None),
    ],
)
def test_an_invokes_head_is_read(head: str, name: str | None) -> None:
    assert head_of(head + "more>") == head
    assert invoked_name(head) == name
