"""Names that `sglang` has and `runtime.lang` does not: what replaces them."""

from typing import NoReturn

_HINTS = {
    "Runtime": "no server is launched from a program: use lang.Local(Engine(...)), with the Engine "
    "of runtime.engine, or launch_server.py and lang.Endpoint(url)",
    "Engine": "it is in runtime.engine: lang.set_default_backend(lang.Local(Engine(...)))",
    "separate_reasoning": "the server tells reasoning apart: see reasoning_content in README",
    **dict.fromkeys(
        ("Anthropic", "LiteLLM", "VertexAI", "Shim"),
        "programs run on lang.Endpoint, lang.Local, or lang.OpenAI for other servers",
    ),
}


def refuse_name(name: str) -> NoReturn:
    """Raise AttributeError for a name that the package lacks.

    Raises ImportError for a name of SGLang's, with what to use instead: `from runtime.lang import`
    passes that on, and drops the message of an AttributeError.
    """
    if name in _HINTS:
        raise ImportError(f"runtime.lang has no {name!r}: {_HINTS[name]}", name=name)
    raise AttributeError(f"runtime.lang has no {name!r}", name=name)
