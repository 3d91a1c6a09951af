"""Body fields of other servers that are not here: what says the same, or why nothing does."""

import re

_HINTS = {
    # OpenAI's
    "suffix": "there is no filling in between; put what comes first into prompt",
    "prompt_embeds": "send text or token ids",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "V4 reads and writes text only",
    "web_search_options": "nothing is searched; give the model a tool",
    "reasoning": "use reasoning_effort",
    # SGLang's
    "input_embeds": "send text or token ids",
    "image_data": "V4 reads text only",
    "audio_data": "V4 reads text only",
    "video_data": "V4 reads text only",
    "lora_path": "there are no adapters",
    "session_params": "send the whole prompt: what was there before is found in the cache",
    "custom_logit_processor": "code of a client is never run; use logit_bias",
    "custom_params": "they are for custom_logit_processor, and code of a client is never run",
    "return_hidden_states": "hidden states do not leave the engine",
    "stop_regex": "use stop, or regex for the whole answer",
    "return_routed_experts": "hidden states do not leave the engine",
    "return_cached_tokens_details": "usage tells cached_tokens; the cache is one memory",
    "return_meta_info": "use /generate, or usage and logprobs",
    "return_prompt_token_ids": "use /tokenize, with messages for a chat",
    "input_ids": "use /v1/completions or /generate",
    "task": "ask in a message",
    "bootstrap_host": "prefill and decode run in one server",
    "bootstrap_room": "prefill and decode run in one server",
    "stream_interval": "every step's tokens are streamed",
    "chat_template": "chats are written in V4's own format, or by the checkpoint's template",
    "profile_by_stage": "the range of each step in the trace tells its phase",
    "profile_stages": "the range of each step in the trace tells its phase",
    "merge_profiles": "one device computes: there is one trace",
    "profile_prefix": "give output_dir",
    # vLLM's
    "documents": "put them into a message",
    "echo": "use /v1/completions",
    "thinking_token_budget": "V4 knows no budget; use reasoning_effort",
    "guided_choice": "use regex",
    "guided_grammar": "use ebnf",
    "guided_json": "use json_schema, or response_format",
    "guided_regex": "use regex",
    "structured_outputs": "use response_format, json_schema, regex or ebnf",
    "use_beam_search": "use n, or the language's select",
    "length_penalty": "there is no beam search",
    "logits_processors": "code of a client is never run; use logit_bias",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias, or regex",
    "prompt_logprobs": "use echo with logprobs, or logprob_start_len of /generate",
    "truncate_prompt_tokens": "a prompt that is too long is refused, never cut",
    "include_stop_str_in_output": "use no_stop_trim",
    "kv_transfer_params": "prefill and decode run in one server",
    # Names that belong to another dialect
    "max_tokens": "use max_new_tokens",
    "max_completion_tokens": "use max_new_tokens",
    "min_tokens": "use min_new_tokens",
    "response_format": "use json_schema, regex or ebnf",
    "logprobs": "use return_logprob and top_logprobs_num beside sampling_params",
    "stream": "it stands beside sampling_params",
    "best_of": "use n",
}
_UNKNOWN = re.compile(r"contains unknown field `([^`]{1,80})`")


def field_hint(name: str) -> str:
    """Return `: hint` for a field that is not here, "" where there is nothing to say."""
    hint = _HINTS.get(name)
    return f": {hint}" if hint else ""


def unknown_field_hint(complaint: str) -> str:
    """Return the same for the field that msgspec complains about, "" for any other complaint."""
    found = _UNKNOWN.search(complaint)
    return field_hint(found[1]) if found else ""
