"""The language: programs that say text, let a model write or choose, fork and join.

Importing it loads neither torch nor the server; backends and their libraries come on first use.
"""

from runtime.lang.absent import refuse_name
from runtime.lang.backend import (
    Backend,
    flush_cache,
    get_server_info,
    global_config,
    set_default_backend,
)
from runtime.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from runtime.lang.endpoint import Endpoint
from runtime.lang.ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR
from runtime.lang.local import Local
from runtime.lang.openai_endpoint import OpenAI
from runtime.lang.program import Program, function
from runtime.lang.state import AsyncState, State
from runtime.lang.words import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    image,
    select,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)

# The name that programs written for SGLang know.
RuntimeEndpoint = Endpoint
__getattr__ = refuse_name

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "AsyncState",
    "Backend",
    "Endpoint",
    "Local",
    "OpenAI",
    "Program",
    "RuntimeEndpoint",
    "State",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]
