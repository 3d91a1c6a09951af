"""What a server says of itself: which engine, which model, how many token ids."""

from dataclasses import dataclass

from tests.bench.serving.client import Client

# Enough to be comparable on the models this is for, where a server does not say.
DEFAULT_VOCAB_SIZE = 129_280


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts that stand beside the figures.

    engine      "umbra", "sglang", "vllm" ..., as far as it can be told
    vocab_size  None where the server does not say
    """

    engine: str
    version: str
    model: str
    vocab_size: int | None


async def ask_facts(client: Client) -> ServerFacts:
    """Ask the server; what it does not tell is "unknown"."""
    listed = await client.get_json("/v1/models")
    models = listed.get("data") or [{}]
    info = await client.get_json("/server_info", "/get_server_info")
    model = await client.get_json("/model_info", "/get_model_info")
    version = info.get("version") or (await client.get_json("/version")).get("version")
    vocab = model.get("vocab_size") or info.get("vocab_size")
    name = models[0].get("id") or model.get("model_path") or "default"
    return ServerFacts(
        # Umbra's models are owned by "sglang", whose API it speaks; no other server replays.
        engine="umbra" if "replay_tokens" in info else str(models[0].get("owned_by") or "unknown"),
        version=str(version or "unknown"),
        model=str(name),
        vocab_size=vocab if isinstance(vocab, int) else None,
    )
