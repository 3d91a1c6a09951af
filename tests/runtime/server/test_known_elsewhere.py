"""Every field that clients know from other servers is served, harmless, or refused with a hint.

The lists are those of OpenAI's, Anthropic's and DeepSeek's references and of the request classes of
SGLang, vLLM, llama.cpp and text-generation-inference.
"""

from typing import Any

import msgspec
import pytest

from runtime.server.chat_schema import ChatBody
from runtime.server.field_hints import HintedBody
from runtime.server.messages_schema import CountBody, MessagesBody
from runtime.server.native_schema import SamplingParams
from runtime.server.openai_schema import CompletionBody
from runtime.server.prompt import PromptedBody
from runtime.server.responses_schema import ResponsesBody
from runtime.server.tokenize import TokenizeBody
from tests.runtime.server.engine import Server, served

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, tuple[type[HintedBody], dict[str, Any]]] = {
    "/v1/completions": (CompletionBody, {"prompt": "x", "seed": 1}),
    "/v1/chat/completions": (ChatBody, {**HI, "max_tokens": 9, "seed": 1}),
    "/generate": (PromptedBody, {"text": "x", "sampling_params": {"sampling_seed": 1}}),
    "/v1/messages": (MessagesBody, {**HI, "model": "tiny", "max_tokens": 9, "seed": 1}),
    "/v1/messages/count_tokens": (CountBody, {**HI, "model": "tiny"}),
    "/v1/responses": (ResponsesBody, {"input": "hi", "max_output_tokens": 9, "seed": 1}),
    "/tokenize": (TokenizeBody, HI),
}

_OPENAI_SHARED = (
    # OpenAI, DeepSeek
    "model stream stream_options max_tokens temperature top_p n stop seed logit_bias logprobs"
    " presence_penalty frequency_penalty"
    # SGLang, vLLM
    " top_k min_p min_tokens repetition_penalty stop_token_ids ignore_eos skip_special_tokens"
    " spaces_between_special_tokens no_stop_trim json_schema regex ebnf structural_tag rid"
    " extra_key cache_salt priority return_token_ids response_format"
    " max_completion_tokens best_of"
)
SERVED = {
    "/v1/completions": f"{_OPENAI_SHARED} prompt echo",
    "/v1/chat/completions": f"{_OPENAI_SHARED} messages tools tool_choice parallel_tool_calls"
    " top_logprobs reasoning_effort modalities thinking enable_thinking chat_template_kwargs"
    " separate_reasoning stream_reasoning continue_final_message add_generation_prompt documents",
    "/generate": "text input_ids sampling_params stream return_logprob logprob_start_len"
    " top_logprobs_num token_ids_logprob return_text_in_logprobs rid priority cache_salt extra_key",
    "/v1/messages": "model messages max_tokens system tools tool_choice thinking output_config"
    " output_format context_management stop_sequences temperature top_p top_k stream metadata",
    "/v1/messages/count_tokens": "model messages system tools tool_choice thinking output_config"
    " output_format context_management",
    "/v1/responses": "model input instructions previous_response_id store stream tools tool_choice"
    " parallel_tool_calls text reasoning max_output_tokens temperature top_p top_logprobs include"
    " metadata top_k seed min_p min_tokens ignore_eos logit_bias cache_salt extra_key priority rid",
    "/tokenize": "prompt text messages tools add_special_tokens add_generation_prompt"
    " continue_final_message chat_template_kwargs enable_thinking thinking reasoning_effort",
}

# Of bookkeeping, routing and latency; parameters of a method that is off; what only V4 has no use
# for; figures that a client must do without where a server has none.
_HARMLESS_EVERYWHERE = (
    "user metadata safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options"
    " session_id request_labels custom_labels routing_key conversation_id ngram_corpus_id"
    " kv_router_hint cache_prompt id_slot slot_id n_keep n_discard"
    " repeat_last_n dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers"
    " xtc_threshold mirostat_tau mirostat_eta dynatemp_exponent truncation_side"
    " guided_decoding_backend routed_experts_start_len routed_experts_prompt_start"
    " images_config mm_processor_kwargs media_io_kwargs max_dynamic_patch min_dynamic_patch"
    " use_audio_in_video return_mm_kwargs return_token_offsets timings_per_token return_progress"
    " something_new"
)
_HARMLESS_OPENAI = f"{_HARMLESS_EVERYWHERE} prediction provider route models"
HARMLESS = {
    "/v1/completions": f"{_HARMLESS_OPENAI} parallel_tool_calls",
    "/v1/chat/completions": _HARMLESS_OPENAI,
    "/generate": f"{_HARMLESS_EVERYWHERE} model log_metrics no_logs received_time"
    " external_trace_header http_worker_ipc mm_hashes mm_content_hashes video_config"
    " decode_tp_size need_wait_for_mm_inputs num_items_assigned encoder_urls",
    "/v1/messages": f"{_HARMLESS_EVERYWHERE} cache_control betas diagnostics inference_geo speed"
    " user_profile_id workspace_id billing_policy fallbacks fallback_credit_token stream_options",
    "/v1/messages/count_tokens": "cache_control betas speed user_profile_id workspace_id metadata"
    " stop_sequences temperature top_p max_tokens stream",
    "/v1/responses": f"{_HARMLESS_EVERYWHERE} max_tool_calls stream_options background_options"
    " image access_programs",
    "/tokenize": "mm_processor_kwargs cache_salt user something_new",
}

_REFUSED_EVERYWHERE = (
    # SGLang
    "stop_regex custom_params custom_logit_processor lora_path session_params return_hidden_states"
    " return_routed_experts bootstrap_host bootstrap_port bootstrap_room data_parallel_rank"
    " routed_dp_rank disagg_prefill_dp_rank beam_width"
    # vLLM
    " use_beam_search length_penalty bad_words allowed_token_ids truncate_prompt_tokens"
    " kv_transfer_params ec_transfer_params logits_processors vllm_xargs watermarking"
    " repetition_detection stream_interval thinking_token_budget prompt_logprobs"
    # llama.cpp, text-generation-inference, others
    " typical_p top_n_sigma mirostat dry_multiplier xtc_probability dynatemp_range samplers"
    " min_keep repeat_penalty t_max_predict_ms lora watermark do_sample truncate thinking_budget"
    " thinking_budget_tokens grammar"
)
_REFUSED_OPENAI = (
    f"{_REFUSED_EVERYWHERE} guided_json guided_regex guided_choice guided_grammar"
    " guided_whitespace_pattern include_stop_str_in_output logprob_token_ids"
    " return_tokens_as_token_ids return_prompt_token_ids return_prompt_text return_meta_info"
    " return_cached_tokens_details request_id max_new_tokens n_predict max_output_tokens"
    " min_new_tokens stop_sequences sampling_seed random_seed sampling_params n_probs"
    " response_fields store service_tier moderation verbosity input_ids suffix functions"
    " function_call chat_template reasoning truncation background prompt_embeds"
    " add_special_tokens return_tokens image_data input"
)
REFUSED = {
    "/v1/completions": f"{_REFUSED_OPENAI} documents tools tool_choice top_logprobs"
    " reasoning_effort chat_template_kwargs enable_thinking thinking",
    "/v1/chat/completions": f"{_REFUSED_OPENAI} audio web_search_options task echo system"
    " instructions include_reasoning reasoning_format parse_tool_calls previous_response_id"
    " conversation output_config output_format",
    "/generate": f"{_REFUSED_EVERYWHERE} {' '.join(SamplingParams.__struct_fields__)}"
    " input_embeds image_data video_data audio_data return_prompt_token_ids lora_id"
    " positional_embed_overrides multi_item_delimiter_indices return_sampling_mask return_entropy"
    " return_flat_raw_top_logprobs return_indexer_topk max_thinking_tokens require_reasoning"
    " background max_tokens min_tokens stop_sequences response_format inputs parameters echo"
    " logprobs best_of details return_full_text decoder_input_details top_n_tokens",
    "/v1/messages": f"{_REFUSED_EVERYWHERE} container mcp_servers compaction service_tier stop n"
    " max_completion_tokens max_new_tokens max_tokens_to_sample response_format reasoning_effort"
    " enable_thinking chat_template_kwargs presence_penalty frequency_penalty repetition_penalty"
    " logprobs json_schema regex parallel_tool_calls functions instructions store",
    "/v1/messages/count_tokens": "container mcp_servers compaction response_format enable_thinking"
    " chat_template_kwargs instructions functions",
    "/v1/responses": f"{_REFUSED_EVERYWHERE} background conversation prompt context_management"
    " truncation service_tier moderation messages system max_tokens max_completion_tokens"
    " max_new_tokens n response_format json_schema regex ebnf stop stop_token_ids presence_penalty"
    " frequency_penalty repetition_penalty logprobs return_token_ids reasoning_effort thinking"
    " enable_thinking chat_template_kwargs functions function_call separate_reasoning"
    " skip_special_tokens continue_final_message chat_template documents request_id"
    " structured_outputs guided_json enable_response_messages sampling_params",
    "/tokenize": "chat_template documents return_token_strs content add_special with_pieces",
}


def names_in(table: dict[str, str], path: str) -> list[str]:
    return table[path].split()


@pytest.mark.parametrize("path", BODIES)
def test_each_field_is_of_one_kind(path: str) -> None:
    shape = BODIES[path][0]
    served_names, harmless = names_in(SERVED, path), names_in(HARMLESS, path)

    assert set(served_names) <= set(shape.__struct_fields__)
    assert not {*served_names, *harmless} & set(shape.elsewhere.names)
    assert set(names_in(REFUSED, path)) <= set(shape.elsewhere.names)
    # What a body has itself is not refused as another server's.
    assert not set(shape.__struct_fields__) & set(shape.elsewhere.names)


def stable(request: Any) -> dict[str, Any]:
    return msgspec.to_builtins(request) | {"request_id": 0}


@pytest.mark.parametrize("path", BODIES)
@served(v4=True)
async def test_harmless_fields_change_nothing(server: Server, path: str) -> None:
    body = BODIES[path][1]
    plain = await server.post(path, body)
    assert plain.status_code == 200
    before = list(server.engine.requests)
    for name in names_in(HARMLESS, path):
        if name == "stream":
            continue
        value = {"x": "1"} if name == "metadata" else ["x"] if name == "stop_sequences" else 1.5

        reply = await server.post(path, {**body, name: value})

        assert reply.status_code == 200, (name, reply.text)
        assert set(reply.json()) == set(plain.json())
        if before:
            assert stable(server.engine.requests[-1]) == stable(before[-1]), name


@pytest.mark.parametrize("path", BODIES)
@served(v4=True)
async def test_refused_fields_name_themselves_and_say_what_to_do(server: Server, path: str) -> None:
    shape, body = BODIES[path]
    for name in shape.elsewhere.names:
        reply = await server.post(path, {**body, name: {"asks": "for something"}})

        assert reply.status_code == 400, name
        error = reply.json()["error"]
        assert error["message"].startswith(f"{name} is not supported: "), name
        if path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
            assert (error["param"], error["code"]) == (name, "not_supported")
    assert not server.engine.requests


@pytest.mark.parametrize("path", BODIES)
@served(v4=True)
async def test_refused_fields_that_ask_for_nothing_are_taken(server: Server, path: str) -> None:
    shape, body = BODIES[path]

    nothing = await server.post(path, {**body, **dict.fromkeys(shape.elsewhere.names)})

    assert nothing.status_code == 200, nothing.text


# What clients send of their own accord, as they do for servers that have these fields.
SAME: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "use_beam_search": False, "length_penalty": 1.0, "include_stop_str_in_output": False,
        "suffix": "", "bad_words": [], "add_special_tokens": True, "do_sample": True,
        "thinking_token_budget": -1, "service_tier": "auto", "store": False, "tools": [],
        "tool_choice": "none", "modalities": ["text"], "reasoning_effort": "none",
    },
    "/v1/chat/completions": {
        "service_tier": "default", "store": False, "verbosity": "medium", "function_call": "auto",
        "functions": [], "include_reasoning": True, "reasoning_format": "auto", "typical_p": 1,
        "repeat_penalty": 1.0, "mirostat": 0, "dry_multiplier": 0.0, "xtc_probability": 0,
        "top_n_sigma": -1, "data_parallel_rank": 0, "add_special_tokens": False, "echo": False,
        "parse_tool_calls": True, "thinking_budget": -1, "beam_width": 1, "min_keep": 0,
    },
    "/generate": {
        "return_hidden_states": False, "lora_path": None, "image_data": [], "session_params": {},
        "return_flat_raw_top_logprobs": False, "background": False, "data_parallel_rank": 0,
    },
    "/v1/messages": {
        "service_tier": "standard_only", "n": 1, "frequency_penalty": 0, "presence_penalty": 0.0,
        "repetition_penalty": 1.0, "logprobs": False, "parallel_tool_calls": True, "store": False,
    },
    "/v1/responses": {
        "background": False, "truncation": "disabled", "service_tier": "auto", "n": 1, "stop": [],
        "conversation": None, "prompt": None, "function_call": "auto", "logprobs": False,
        "frequency_penalty": 0.0, "repetition_penalty": 1, "context_management": [],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, fields in SAME.items() for name in fields]
)
def test_values_that_ask_for_what_is_done_anyway_are_taken(path: str, name: str) -> None:
    hints = BODIES[path][0].elsewhere

    assert name in hints.names
    hints.refuse(name, SAME[path][name])


@pytest.mark.parametrize("path", SAME)
@served(v4=True)
async def test_they_are_taken_together(server: Server, path: str) -> None:
    reply = await server.post(path, {**BODIES[path][1], **SAME[path]})

    assert reply.status_code == 200, reply.text
