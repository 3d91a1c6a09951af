"""The fields of other servers' dialects, by the body that clients put them into.

Source: the API references of OpenAI, Anthropic and DeepSeek, and the request classes of SGLang,
vLLM, llama.cpp and text-generation-inference. A field that changes nothing but bookkeeping, routing
or latency there (`user`, `prompt_cache_key`, `session_id`) needs no hint: it is ignored.
"""

from runtime.server.field_hints import OFF, FieldHint, FieldHints

_ONE = (*OFF, 1)
_ON = (True,)
_ONE_SERVER = "prefill and decode run in one server"
_OWN_CHOICE = "the server chooses which rank a request runs on: where its prefix is"
_NO_CODE = "code of a client is never run; use logit_bias"
_NO_BUDGET = "V4 knows no budget; use reasoning_effort"
_EFFORT = "V4 knows no budget; use output_config.effort"
_NO_CUT = "a prompt that is too long is refused, never cut"
_TEXT_ONLY = "V4 reads text only"
_EXPERTS = "hidden states do not leave the engine"
_WHOLE_PROMPT = "send the whole prompt: what was there before is found in the cache"
_CHAT = "use /v1/chat/completions"

# Of every dialect that generates.
_GENERATING = (
    FieldHint("stop_regex", "use stop, or regex for the whole answer"),
    FieldHint("use_beam_search beam_width", "use n, or the language's select", _ONE),
    FieldHint("length_penalty", "there is no beam search", _ONE),
    FieldHint("logits_processors custom_logit_processor", _NO_CODE),
    FieldHint("custom_params", "they are for custom_logit_processor, which is not supported"),
    FieldHint("vllm_xargs", "they are for extensions of a server, and there are none"),
    FieldHint("lora_path lora_id lora lora_request adapter_id", "there are no adapters"),
    FieldHint("session_params", _WHOLE_PROMPT),
    FieldHint("bad_words", "use logit_bias"),
    FieldHint("allowed_token_ids", "use logit_bias, or regex"),
    FieldHint("truncate_prompt_tokens", _NO_CUT, ()),
    FieldHint("truncate prompt_truncate_len", _NO_CUT),
    FieldHint("return_hidden_states return_routed_experts return_indexer_topk", _EXPERTS),
    FieldHint("return_sampling_mask return_entropy", "log-probabilities are reported, no more"),
    FieldHint("kv_transfer_params ec_transfer_params", _ONE_SERVER),
    FieldHint("bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key", _ONE_SERVER, ()),
    FieldHint("routed_dp_rank data_parallel_rank disagg_prefill_dp_rank", _OWN_CHOICE),
    FieldHint("watermark watermarking", "answers are not marked"),
    FieldHint("repetition_detection", "limit the length, or use a penalty"),
    FieldHint("stream_interval", "every step's tokens are streamed", _ONE),
    FieldHint("repeat_penalty", "use repetition_penalty", _ONE),
    FieldHint("typical_p typical tfs_z tfs", "use top_p, top_k or min_p", _ONE),
    FieldHint("top_a dynatemp_range smoothing_factor", "use top_p, top_k or min_p"),
    FieldHint("top_n_sigma adaptive_target", "use top_p, top_k or min_p", (*OFF, -1)),
    FieldHint("epsilon_cutoff eta_cutoff", "use min_p"),
    FieldHint("mirostat mirostat_mode", "use temperature and top_p"),
    FieldHint("dry_multiplier xtc_probability", "use a penalty"),
    FieldHint("no_repeat_ngram_size", "use a penalty"),
    FieldHint("samplers sampler_order sampler_priority", "filters apply together, in no order"),
    FieldHint("min_keep", "a filter keeps one token at least", _ONE),
    FieldHint("do_sample", "a temperature of 0 takes the likeliest token", _ON),
    FieldHint("t_max_predict_ms max_time", "an answer ends by its tokens, not by a clock"),
    FieldHint("max_thinking_tokens thinking_token_budget thinking_budget", _NO_BUDGET, (-1,)),
    FieldHint("thinking_budget_tokens reasoning_budget", _NO_BUDGET, (-1,)),
)
# Of OpenAI's two endpoints, with what its compatible servers add to them.
_OPENAI = (
    *_GENERATING,
    FieldHint("max_new_tokens n_predict max_output_tokens max_tokens_to_sample max_length",
              "use max_tokens", ()),
    FieldHint("min_new_tokens min_length", "use min_tokens"),
    FieldHint("stop_sequences", "use stop"),
    FieldHint("sampling_seed random_seed", "use seed", ()),
    FieldHint("sampling_params parameters", "its fields stand in the body itself"),
    FieldHint("request_id", "use rid"),
    FieldHint("return_cached_tokens_details",
              "usage reports cached_tokens, and the cache is one memory"),
    FieldHint("return_meta_info", "use /generate, or usage and logprobs"),
    FieldHint("return_prompt_token_ids return_prompt_text", "use /tokenize"),
    FieldHint("return_tokens return_tokens_as_token_ids", "use return_token_ids"),
    FieldHint("logprob_token_ids", "use token_ids_logprob of /generate"),
    FieldHint("n_probs", "use logprobs"),
    FieldHint("return_logprob", "use logprobs"),
    FieldHint("prompt_logprobs",
              "use echo with logprobs of /v1/completions, or logprob_start_len of /generate", ()),
    FieldHint("include_stop_str_in_output", "use no_stop_trim"),
    FieldHint("guided_choice", "use regex"),
    FieldHint("guided_grammar grammar", "use ebnf"),
    FieldHint("guided_json", "use json_schema, or response_format"),
    FieldHint("guided_regex", "use regex"),
    FieldHint("guided_whitespace_pattern", "use regex or ebnf"),
    FieldHint("response_fields", "replies are sent whole"),
    FieldHint("n_indent", "use regex"),
    FieldHint("service_tier", "there is one tier; use priority",
              (*OFF, "auto", "default", "flex", "standard_only")),
    FieldHint("store", "answers are not stored"),
    FieldHint("background", "answers are not stored; use stream"),
    FieldHint("moderation safe_prompt", "nothing is moderated"),
    FieldHint("prompt_embeds input_embeds", "send text or token ids"),
    FieldHint("image_data audio_data video_data", _TEXT_ONLY),
    FieldHint("truncation", _NO_CUT, (*OFF, "disabled")),
    FieldHint("context_length_exceeded_behavior", _NO_CUT, (*OFF, "error")),
    FieldHint("transforms plugins", "messages are not changed"),
)  # fmt: skip
COMPLETION = FieldHints(
    _OPENAI,
    (
        FieldHint("suffix input_suffix input_prefix",
                  "there is no filling in between; put what comes first into prompt"),
        FieldHint("input_ids inputs input", "use prompt"),
        FieldHint("top_logprobs", "use logprobs, a number"),
        FieldHint("add_special_tokens", "send token ids, which are taken as they are", _ON),
        FieldHint("tools functions chat_template chat_template_kwargs documents thinking", _CHAT),
        FieldHint("enable_thinking continue_final_message modalities", _CHAT,
                  (*OFF, ["text"])),
        FieldHint("tool_choice function_call reasoning_effort", _CHAT, (*OFF, "none", "auto")),
        FieldHint("reasoning", _CHAT),
        FieldHint("verbosity", "ask for it in the prompt", (*OFF, "medium")),
    ),
)  # fmt: skip
CHAT = FieldHints(
    _OPENAI,
    (
        FieldHint("functions", "use tools"),
        FieldHint("function_call", "use tool_choice", (*OFF, "none", "auto")),
        FieldHint("audio", "V4 reads and writes text only"),
        FieldHint("web_search_options", "nothing is searched; give the model a tool"),
        FieldHint("verbosity", "ask for it in a message", (*OFF, "medium")),
        FieldHint("reasoning", "use reasoning_effort"),
        FieldHint("include_reasoning", "use reasoning_effort, or skip reasoning_content", _ON),
        FieldHint("reasoning_format", "use separate_reasoning",
                  (*OFF, "auto", "deepseek", "parsed")),
        FieldHint("parse_tool_calls", "use /generate for an answer that is not parsed", _ON),
        FieldHint("prompt_mode", "use reasoning_effort"),
        FieldHint("return_prompt_token_ids return_prompt_text", "use /tokenize, with messages"),
        FieldHint("input_ids prompt_embeds", "use /v1/completions or /generate"),
        FieldHint("input inputs", "use messages"),
        FieldHint("system instructions", "use a message of role system"),
        FieldHint("previous_response_id conversation", "send all messages, or use /v1/responses"),
        FieldHint("chat_template",
                  "chats are written in V4's own format, or by the checkpoint's template"),
        FieldHint("add_special_tokens", "the chat's format has them"),
        FieldHint("echo", "use /v1/completions"),
        FieldHint("suffix", "use a last message of role assistant, and continue_final_message"),
        FieldHint("task", "ask in a message"),
        FieldHint("output_config output_format", "use response_format"),
        FieldHint("tools.type messages.tool_calls.type",
                  "tools of type function and custom are served, and no others"),
        FieldHint("tools.function", 'a tool is {"type": "function", "function": {"name": ...}}'),
        FieldHint("tools.custom", 'such a tool is {"type": "custom", "custom": {"name": ...}}'),
    ),
)  # fmt: skip

_SAMPLING_NAMES = (
    "n temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty"
    " logit_bias seed sampling_seed stop stop_token_ids ignore_eos skip_special_tokens"
    " spaces_between_special_tokens no_stop_trim json_schema regex ebnf structural_tag"
    " max_new_tokens min_new_tokens"
)
# Names of another dialect, in `sampling_params` and where they would stand beside it.
_OTHER_NAMES = {
    "max_tokens max_completion_tokens n_predict max_length": "max_new_tokens",
    "min_tokens min_length": "min_new_tokens",
    "stop_sequences": "stop",
    "random_seed": "seed",
    "response_format guided_json structured_outputs": "json_schema, regex or ebnf",
    "guided_choice guided_regex": "regex",
    "guided_grammar grammar": "ebnf",
    "include_stop_str_in_output": "no_stop_trim",
    "best_of": "n",
    "repeat_penalty": "repetition_penalty",
}


def _within(hint: FieldHint) -> FieldHint:
    names = " ".join(f"sampling_params.{name}" for name in hint.names.split())
    return FieldHint(names, hint.text)


SAMPLING = FieldHints(_GENERATING)
GENERATE = FieldHints(
    (FieldHint(_SAMPLING_NAMES, "give it in sampling_params", ()),),
    (FieldHint(name, f"use {ours} in sampling_params") for name, ours in _OTHER_NAMES.items()),
    (_within(FieldHint(name, f"use {ours}")) for name, ours in _OTHER_NAMES.items()),
    map(_within, _GENERATING),
    (
        *_GENERATING,
        FieldHint("sampling_params.stream", "it stands beside sampling_params"),
        FieldHint("sampling_params.logprobs",
                  "use return_logprob and top_logprobs_num beside sampling_params"),
        FieldHint("logprobs n_probs details decoder_input_details top_n_tokens",
                  "use return_logprob and top_logprobs_num"),
        FieldHint("prompt_logprobs echo return_full_text", "use logprob_start_len"),
        FieldHint("prompts inputs input", "use text"),
        FieldHint("tools", _CHAT),
        FieldHint("parameters", "use sampling_params"),
        FieldHint("input_embeds prompt_embeds positional_embed_overrides",
                  "send text or token ids"),
        FieldHint("image_data audio_data video_data", _TEXT_ONLY),
        FieldHint("custom_logit_processor", "code of a client is never run; use logit_bias"),
        FieldHint("return_prompt_token_ids", "use /tokenize"),
        FieldHint("return_flat_raw_top_logprobs return_flat_raw_top_logprobs_b64",
                  "use top_logprobs_num"),
        FieldHint("multi_item_delimiter_indices", "use /score"),
        FieldHint("require_reasoning", _CHAT),
        FieldHint("background", "answers are not stored; use stream"),
    ),
)  # fmt: skip

_OUTPUT_FORMAT = "use output_config.format"
MESSAGES = FieldHints(
    _GENERATING,
    (
        FieldHint("stop_regex", "use stop_sequences"),
        FieldHint("use_beam_search beam_width", "there is no beam search", _ONE),
        FieldHint("allowed_token_ids", "use logit_bias"),
        FieldHint("max_thinking_tokens thinking_token_budget thinking_budget", _EFFORT, (-1,)),
        FieldHint("thinking_budget_tokens reasoning_budget", _EFFORT, (-1,)),
        FieldHint("compaction", "this server summarizes no conversations"),
        FieldHint("container", "no code is run; give the model a tool"),
        FieldHint("mcp_servers", "no other servers are called; give the model a tool"),
        FieldHint("service_tier", "there is one tier; use priority",
                  (*OFF, "auto", "standard_only", "default")),
        FieldHint("store", "answers are not stored"),
        FieldHint("max_completion_tokens max_new_tokens max_output_tokens n_predict"
                  " max_tokens_to_sample", "use max_tokens", ()),
        FieldHint("min_new_tokens", "use min_tokens"),
        FieldHint("stop", "use stop_sequences"),
        FieldHint("n best_of", "a request has one answer", _ONE),
        FieldHint("response_format json_schema structured_outputs guided_json", _OUTPUT_FORMAT),
        FieldHint("regex ebnf structural_tag guided_regex guided_choice guided_grammar grammar",
                  "use output_config.format, or /v1/chat/completions"),
        FieldHint("reasoning_effort reasoning", "use output_config.effort", (*OFF, "none")),
        FieldHint("enable_thinking", "use thinking", ()),
        FieldHint("chat_template_kwargs", "use thinking"),
        FieldHint("chat_template", "chats are written in V4's own format"),
        FieldHint("presence_penalty frequency_penalty", _CHAT),
        FieldHint("repetition_penalty repeat_penalty", _CHAT, _ONE),
        FieldHint("dry_multiplier xtc_probability no_repeat_ngram_size", _CHAT),
        FieldHint("logprobs top_logprobs prompt_logprobs return_token_ids", _CHAT),
        FieldHint("stop_token_ids no_stop_trim include_stop_str_in_output", _CHAT),
        FieldHint("skip_special_tokens separate_reasoning stream_reasoning", _CHAT, _ON),
        FieldHint("parallel_tool_calls", "use disable_parallel_tool_use of tool_choice", _ON),
        FieldHint("functions", "use tools"),
        FieldHint("function_call", "use tool_choice"),
        FieldHint("continue_final_message", "a last message of the assistant is continued", _ONE),
        FieldHint("prompt input inputs", "use messages"),
        FieldHint("instructions", "use system"),
        FieldHint("output_config.task_budget", "V4 knows no budget; use effort"),
    ),
)  # fmt: skip

_INPUT = "use input"
_REASONING = "use reasoning, with effort"
RESPONSES = FieldHints(
    _GENERATING,
    (
        FieldHint("background", "answers are computed while their request waits; use stream"),
        FieldHint("conversation", "use previous_response_id, or send all items"),
        FieldHint("prompt", "prompts are not stored; use instructions and input"),
        FieldHint("context_management", "contexts are not edited"),
        FieldHint("truncation", _NO_CUT, (*OFF, "disabled")),
        FieldHint("service_tier", "there is one tier; use priority",
                  (*OFF, "auto", "default", "flex")),
        FieldHint("moderation safe_prompt", "nothing is moderated"),
        FieldHint("text.verbosity", "ask for it in a message", (*OFF, "medium")),
        FieldHint("reasoning.summary reasoning.generate_summary",
                  "the reasoning itself is returned", (*OFF, "auto")),
        FieldHint("reasoning.context", "V4's format says which reasoning stays", (*OFF, "auto")),
        FieldHint("reasoning.mode", _REASONING, (*OFF, "standard")),
        FieldHint("messages inputs", _INPUT),
        FieldHint("system", "use instructions"),
        FieldHint("max_tokens max_completion_tokens max_new_tokens n_predict max_length"
                  " max_tokens_to_sample", "use max_output_tokens", ()),
        FieldHint("min_new_tokens min_length", "use min_tokens"),
        FieldHint("sampling_seed random_seed", "use seed", ()),
        FieldHint("sampling_params parameters", "its fields stand in the body itself"),
        FieldHint("n best_of", "a request has one answer", _ONE),
        FieldHint("response_format json_schema structured_outputs guided_json output_format",
                  "use text, with format"),
        FieldHint("regex ebnf structural_tag guided_regex guided_choice guided_grammar grammar",
                  _CHAT),
        FieldHint("stop stop_sequences stop_regex stop_token_ids no_stop_trim"
                  " include_stop_str_in_output", _CHAT),
        FieldHint("presence_penalty frequency_penalty", _CHAT),
        FieldHint("repetition_penalty repeat_penalty", _CHAT, _ONE),
        FieldHint("logprobs", "use include and top_logprobs"),
        FieldHint("prompt_logprobs return_token_ids enable_response_messages", _CHAT),
        FieldHint("skip_special_tokens separate_reasoning stream_reasoning", _CHAT, _ON),
        FieldHint("reasoning_effort", _REASONING, ()),
        FieldHint("thinking enable_thinking chat_template_kwargs", _REASONING, ()),
        FieldHint("chat_template", "chats are written in V4's own format"),
        FieldHint("functions", "use tools"),
        FieldHint("function_call", "use tool_choice", (*OFF, "none", "auto")),
        FieldHint("continue_final_message", _CHAT),
        FieldHint("documents", "put them into a message"),
        FieldHint("request_id", "use rid"),
    ),
)  # fmt: skip

TOKENIZE = FieldHints(
    (
        FieldHint("content input inputs", "use prompt"),
        FieldHint("add_special", "use add_special_tokens", ()),
        FieldHint("return_token_strs with_pieces", "use /detokenize"),
        FieldHint("return_offsets_mapping return_token_offsets", "use /detokenize"),
        FieldHint("chat_template",
                  "chats are written in V4's own format, or by the checkpoint's template"),
        FieldHint("documents", "put them into a message"),
        FieldHint("tools.type messages.tool_calls.type",
                  "tools of type function and custom are served, and no others"),
        FieldHint("tools.function", 'a tool is {"type": "function", "function": {"name": ...}}'),
        FieldHint("tools.custom", 'such a tool is {"type": "custom", "custom": {"name": ...}}'),
    ),
)  # fmt: skip
PROFILE = FieldHints(
    (
        FieldHint("profile_by_stage profile_stages",
                  "the range of each step in the trace tells its phase"),
        FieldHint("merge_profiles", "each rank writes a trace of its own"),
        FieldHint("profile_prefix", "give output_dir"),
    ),
)  # fmt: skip
