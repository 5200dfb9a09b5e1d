"""Models in Mistral's own format: params.json, consolidated*.safetensors and tekken.json.

These are read as the files and tensors of Hugging Face's format: config.json, tokenizer.json and
others are made when they are read.  Rows of queries and keys are reordered from pairs to halves.
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.derived import take_rows
from mindspore_serving.llm.checkpoint.gguf.pre_tokenizers import patterns_of
from mindspore_serving.llm.checkpoint.gguf.tokenizer import CONTROL, NORMAL, Json, tokenizer_of
from mindspore_serving.llm.checkpoint.ranks import SPELLING
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor

PARAMS, TEKKEN, WEIGHTS = "params.json", "tekken.json", "consolidated"
MAX_BYTES = 64 * 2**20
MAX_SPECIAL = 2**16
_RULE = "tekken"
_EMBEDDING = "tok_embeddings.weight"
_SETTINGS = {  # params.json -> config.json
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
}
_OPTIONAL = {
    "rope_theta": "rope_theta",
    "sliding_window": "sliding_window",
    "tied_embeddings": "tie_word_embeddings",
    "max_position_embeddings": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
}
_USUAL = {"model_type": ("transformer",), "use_biases": (False,), "causal": (True,)}
# Special tokens of the first files, which do not list them.
_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]",
    "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)  # fmt: skip
_LENGTH = 32768  # positions, if params.json does not say
_TOP = {
    _EMBEDDING: "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_NAME = re.compile(r"layers\.(\d+)\.(.+)\.weight")
_HEADS = {"attention.wq": "num_attention_heads", "attention.wk": "num_key_value_heads"}
_TURNS = """\
    {%- elif message.role == 'user' %}
        {{- '[INST]' ~ PREFIX ~ message.content ~ '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- message.content ~ eos_token }}
    {%- else %}
        {{- raise_exception('the role ' ~ message.role ~ ' is none of system, user, assistant') }}
    {%- endif %}
{%- endfor %}"""
_THIRD = """\
{{- bos_token }}
{%- set parts = namespace(system='', last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set parts.system = parts.system ~ message.content ~ '\\n\\n' %}
    {%- elif message.role == 'user' %}
        {%- set parts.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
""" + _TURNS.replace("PREFIX", "(parts.system if loop.index0 == parts.last else '')")
_LATER = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {{- '[SYSTEM_PROMPT]' ~ message.content ~ '[/SYSTEM_PROMPT]' }}
""" + _TURNS.replace("PREFIX", "''")
# By the version in tekken.json; for texts, without tools.
_TEMPLATES = {"v3": _THIRD, "v7": _LATER, "v11": _LATER, "v13": _LATER}


def is_consolidated(tensors: Mapping[str, StoredTensor]) -> bool:
    """Return whether the names are those of Mistral's own format."""
    return _EMBEDDING in tensors and "layers.0.attention.wq.weight" in tensors


def hugging_face_tensors(
    tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], label: str
) -> dict[str, StoredTensor]:
    """Return `tensors` by Hugging Face's names.

    `label` begins errors and names the checkpoint.  Raises StartError for a tensor that is not of a
    dense model of texts, and for wrong numbers of heads.
    """
    return dict(_renamed(name, stored, config, label) for name, stored in tensors.items())


def _renamed(
    name: str, stored: StoredTensor, config: Mapping[str, Any], label: str
) -> tuple[str, StoredTensor]:
    match = _NAME.fullmatch(name)
    role = _LAYER.get(match[2]) if match else None
    if match is None or role is None:
        if name in _TOP:
            return _TOP[name], stored
        raise StartError(
            f"{label} has the tensor {name!r}, expected those of a dense model of texts; serve the "
            "files with config.json of this model instead"
        )
    if heads := _HEADS.get(match[2]):
        stored = take_rows(stored, _halves(stored.shape[0], config.get(heads), label, name))
    return f"model.layers.{match[1]}.{role}.weight", stored


def _halves(rows: int, heads: object, label: str, name: str) -> Any:
    """Return the order of rows in which rotated pairs are half a head apart, not adjacent."""
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise StartError(f"{label}: {name!r} has {rows} rows, expected those of {heads!r} heads")
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def has_file(path: Path) -> bool:
    """Return whether `path` is made from params.json or tekken.json beside it."""
    row = _FILES.get(path.name)
    return row is not None and not path.exists() and (path.parent / row[0]).is_file()


def read_file(path: Path) -> Json:
    """Make the file `path`.  Raises StartError naming the file that is wrong."""
    source, make = _FILES[path.name]
    file = path.parent / source
    status = file.stat()
    if status.st_size > MAX_BYTES:
        raise StartError(f"{file} has over {MAX_BYTES} bytes")
    if source == PARAMS:
        return make(file, _load(file))
    return make(file, _vocabulary(file, status.st_mtime_ns, status.st_size))


def _load(path: Path) -> Json:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise StartError(f"{path} holds a {type(content).__name__}, expected an object")
    return content


def _config(path: Path, params: Json) -> Json:
    missing = [name for name in _SETTINGS if name not in params]
    unknown = [
        name
        for name, value in params.items()
        if name not in (*_SETTINGS, *_OPTIONAL) and value not in (None, {}, *_USUAL.get(name, ()))
    ]
    if missing or unknown:
        problem = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)[:200]}"
        raise StartError(
            f"{path} {problem}, expected the settings of a dense model of texts; serve the files "
            "with config.json of this model instead"
        )
    config = {new: params[old] for old, new in _SETTINGS.items()}
    config |= {new: params[old] for old, new in _OPTIONAL.items() if params.get(old) is not None}
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "max_position_embeddings": _LENGTH,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        **config,
    }


class Tekken:
    """Vocabulary of a tekken.json: special tokens, and ranks behind them.

    `metadata` holds the keys of `tokenizer.ggml.*`.
    """

    def __init__(self, path: Path, content: Json) -> None:
        """Read the vocabulary.  Raises StartError naming what is wrong."""
        self.path = path
        try:
            settings = content["config"]
            self.version = str(settings.get("version"))
            num_special = int(settings["default_num_special_tokens"])
            num_ranks = int(settings["default_vocab_size"]) - num_special
            listed = content.get("special_tokens")
            special = {row["rank"]: row["token_str"] for row in listed or ()}
            ranks = [b64decode(row["token_bytes"]) for row in content["vocab"][:num_ranks]]
            pattern = settings["pattern"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StartError(f"{path} is no tekken.json: {error!r:.100}") from None
        if [pattern] != patterns_of(_RULE, str(path)):
            raise StartError(f"{path} splits text by a pattern that is not supported: {pattern!r}")
        special = special or dict(enumerate(_SPECIAL))
        if not len(special) <= num_special < MAX_SPECIAL or len(set(ranks)) != len(ranks):
            raise StartError(
                f"{path} has {num_special} special tokens and {len(ranks)} others, expected each "
                f"token once, and up to {MAX_SPECIAL} special ones; download it again"
            )
        names = [str(special.get(i, f"<SPECIAL_{i}>")) for i in range(num_special)]
        self.special = {name: index for index, name in enumerate(names)}
        tokens = [*names, *("".join(SPELLING[byte] for byte in token) for token in ranks)]
        kinds = [CONTROL] * num_special + [NORMAL] * len(ranks)
        fields = {
            "model": "gpt2",
            "pre": _RULE,
            "tokens": tokens,
            "scores": [-index for index in range(len(tokens))],
            "token_type": kinds,
            "bos_token_id": self.special.get("<s>"),
            "eos_token_id": self.special.get("</s>"),
        }
        self.metadata: dict[str, Any] = {
            f"tokenizer.ggml.{name}": value for name, value in fields.items() if value is not None
        }

    def array(self, key: str) -> list[Any]:
        return list(self.metadata[key])

    texts = array


@lru_cache(maxsize=1)
def _vocabulary(path: Path, mtime_ns: int, size: int) -> Tekken:
    """Return the vocabulary of a file, which is read once until it changes."""
    return Tekken(path, _load(path))


def _tokenizer(_: Path, vocabulary: Tekken) -> Json:
    return tokenizer_of(vocabulary)


def _tokenizer_config(_: Path, vocabulary: Tekken) -> Json:
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config: Json = {role: name for role, name in names.items() if name in vocabulary.special}
    template = _TEMPLATES.get(vocabulary.version)
    return {**config, "chat_template": template} if template else config


def _generation_config(_: Path, vocabulary: Tekken) -> Json:
    end = vocabulary.special.get("</s>")
    return {} if end is None else {"eos_token_id": end}


_FILES: dict[str, tuple[str, Callable[[Path, Any], Json]]] = {
    "config.json": (PARAMS, _config),
    "generation_config.json": (TEKKEN, _generation_config),
    "tokenizer_config.json": (TEKKEN, _tokenizer_config),
    "tokenizer.json": (TEKKEN, _tokenizer),
}
