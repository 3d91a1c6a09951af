"""The stand-in's checkpoint folder: where it is kept, and how it is made once.

Its layers are the six kinds there are (ratio 0, 128, 4 with hash and with learned routing), its
heads have the published geometry, so that everything the server does to a real model happens
to it too.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import layers

SEED = 0
CONTEXT_TOKENS = 32768
FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "MODEL_CARD.md",
)
# The recipe is these files: any change to them makes another folder.
_RECIPE = (
    Path(__file__),
    Path(__file__).with_name("tokenizer.py"),
    Path(__file__).with_name("weights.py"),
    Path(layers.__path__[0]) / "random_weights.py",
    Path(layers.__path__[0]) / "quant.py",
)

_CARD = """\
# Umbra's stand-in model

This is not a language model. It is a network of the DeepSeek V4 kind, made very small and
filled with random numbers; it has never been trained, and what it writes means nothing.

Umbra makes it when it is started without a model path, so that the server, its cache and its
API can be tried on any machine. Six layers cover every kind of layer; the heads have the
published geometry (448 + 64 channels, indexer 128); the weights are stored in the published
format (fp8 blocks, fp4 experts); the tokenizer knows 512 byte-level tokens.

The folder may be deleted at any time; it is made again when needed.
"""


def ensure_default_model(root: Path | None = None) -> Path:
    """Return the stand-in's checkpoint folder, made first if it is not there (about a second).

    root  folder to keep it in; default: `umbra` in the user's cache folder, or in the temporary
          folder where that cannot be written
    Servers that start at once may all make it; one folder wins and all of them use it.
    Raises OSError when `root` cannot be written.
    """
    name = f"default-{_recipe_hash()}"
    for place in [root] if root else _cache_roots():
        if _is_complete(place / name):
            return place / name
    target = (root or _writable_root()) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    try:
        _write(made)
        _publish(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target


def default_config() -> dict[str, Any]:
    """Return the stand-in's `config.json`."""
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        "vocab_size": 512,
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 128,
        "o_groups": 2,
        "o_lora_rank": 128,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "routed_scaling_factor": 1.5,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "num_hash_layers": 3,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 64,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "sliding_window": 128,
        "compress_ratios": [0, 128, 4, 0, 128, 4],
        "num_nextn_predict_layers": 0,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": CONTEXT_TOKENS // 16,
        },
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "expert_dtype": "fp4",
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
    }


def _recipe_hash() -> str:
    digest = hashlib.sha256()
    for path in _RECIPE:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_roots() -> Iterator[Path]:
    """Yield the folders in which an earlier start may have left the stand-in, best first."""
    for find in (_cache_root, _temporary_root):
        root = find()
        if root is not None:
            yield root


def _cache_root() -> Path | None:
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named and Path(named).is_absolute():
        return Path(named) / "umbra"
    try:
        return Path.home() / ".cache" / "umbra"
    except RuntimeError:  # a user without a home
        return None


def _temporary_root() -> Path | None:
    """Return this user's own folder for temporary files, made if need be; None if taken."""
    path = Path(tempfile.gettempdir()) / f"umbra-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    # Anyone may write where this folder lies: one that others can write to could hold any model.
    safe = status.st_uid == os.getuid() and not status.st_mode & 0o022 and not path.is_symlink()
    return path if safe else None


def _writable_root() -> Path:
    for root in _cache_roots():
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                return root
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="umbra-"))


def _is_complete(folder: Path) -> bool:
    # Path.is_file would raise where the folder may not be read.
    return all(os.path.isfile(folder / name) for name in FILES)


def _write(folder: Path) -> None:
    # These bring torch and tokenizers, which a start that finds the folder does without.
    from layers.config import parse_config
    from runtime.default_model.tokenizer import speaking_ids, write_tokenizer
    from runtime.default_model.weights import write_weights

    raw = default_config()
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 1.0}
    for name, value in (("config.json", raw), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    (folder / "MODEL_CARD.md").write_text(_CARD, encoding="utf-8")
    tokenizer = write_tokenizer(folder, max_tokens=CONTEXT_TOKENS)
    write_weights(
        folder / "model.safetensors",
        parse_config(raw, generation),
        seed=SEED,
        speaking=speaking_ids(tokenizer),
    )


def _publish(made: Path, target: Path) -> None:
    """Give the finished folder its name, unless another process was faster."""
    made.chmod(0o755)
    try:
        made.rename(target)
    except OSError:
        if _is_complete(target):
            return
        # Someone deleted files of it. Whoever comes second here finds a complete folder.
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
