"""Prediction heads: a layer behind the last that predicts one token more (multi-token prediction).

It gets the hidden state of a token and the embedding of the next one, and was trained with the
model: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 2.2.  Architectures
name its tensors otherwise; here they are renamed to DeepSeek's.

EAGLE-3 trains such a layer for a finished model, on the states before three of its layers and for
its most frequent tokens: Li et al., "EAGLE-3", arXiv:2503.01840.  Knows no runtime.
"""

import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.safetensors import StoredTensor
from mindspore_serving.llm.checkpoint.weights import Checkpoint
from mindspore_serving.llm.descriptions.architecture import Config
from mindspore_serving.llm.models.spec import ModelSpec

EMBEDDING_NORM, HIDDEN_NORM, PROJECTION = "enorm", "hnorm", "eh_proj"
NORM, HEAD = "shared_head.norm", "shared_head.head"
EAGLE, EAGLE_NORM, FUSION = "LlamaForCausalLMEagle3", "hidden_norm", "fc.weight"
_OFFSETS = "d2t"  # of a token of the head's vocabulary: what is added to get that of the model


@dataclass(frozen=True, slots=True)
class HeadForm:
    """Storage of an architecture's prediction head.

    `stems` are the beginnings of names and what replaces them; `{layer}` is the layer behind the
    last.  With `hidden_first` the projection gets the hidden state before the embedding; with
    `chains_normed` the head's normalised output is the hidden state of the token after the next;
    with `before_norm` the head gets the output of the model's last layer, without the final norm.
    """

    stems: tuple[tuple[str, str], ...] = ()
    hidden_first: bool = False
    chains_normed: bool = False
    before_norm: bool = False


_DEEPSEEK = HeadForm()
_QWEN = HeadForm(
    (
        ("mtp.layers.0.", "{layer}."), ("mtp.fc.", f"{{layer}}.{PROJECTION}."),
        ("mtp.pre_fc_norm_embedding.", f"{{layer}}.{EMBEDDING_NORM}."),
        ("mtp.pre_fc_norm_hidden.", f"{{layer}}.{HIDDEN_NORM}."),
        ("mtp.norm.", f"{{layer}}.{NORM}."),
    ),
    chains_normed=True,
)  # fmt: skip
# Xiaomi, "MiMo", arXiv:2505.07608.
_MIMO = HeadForm(
    (
        ("model.mtp_layers.0.token_layernorm.", f"{{layer}}.{EMBEDDING_NORM}."),
        ("model.mtp_layers.0.hidden_layernorm.", f"{{layer}}.{HIDDEN_NORM}."),
        ("model.mtp_layers.0.input_proj.", f"{{layer}}.{PROJECTION}."),
        ("model.mtp_layers.0.final_layernorm.", f"{{layer}}.{NORM}."),
        ("model.mtp_layers.0.", "{layer}."),
    ),
    hidden_first=True,
    before_norm=True,
)
PREDICTORS = {
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "Glm4MoeForCausalLM": _DEEPSEEK,
    "MiMoForCausalLM": _MIMO,
    "Qwen3NextForCausalLM": _QWEN,
    "Qwen3_5ForCausalLM": _QWEN,
    "Qwen3_5MoeForCausalLM": _QWEN,
    "Qwen3_5ForConditionalGeneration": _QWEN,
    "Qwen3_5MoeForConditionalGeneration": _QWEN,
}


def head_spec(spec: ModelSpec) -> ModelSpec:
    """Return the spec of the prediction head of a model: one layer with full attention."""
    index = spec.num_layers
    last = max((i for i in spec.attending if not spec.windows[i]), default=max(spec.attending))
    mixture = spec.mixture
    if mixture is not None and mixture.layers:
        mixture = replace(mixture, layers=frozenset({index}))
    return replace(
        spec,
        layers=range(index, index + 1),
        num_layers=index + 1,
        heads=(*spec.heads, spec.heads[last]),
        sources=(*spec.sources, index),
        attending=frozenset({index}),
        windows=(*spec.windows, 0),
        rotated=(*spec.rotated, spec.rotated[last]),
        mixture=mixture,
        state=None,
    )


def layers_for_head(spec: ModelSpec) -> tuple[int, ...]:
    """Return `kept_layers` of a model with a prediction head: its output as the next one's input.

    There are none if the head gets the final hidden states.
    """
    form = PREDICTORS.get(spec.architecture_name)
    return (spec.num_layers,) if form is not None and form.before_norm else ()


def find_head(checkpoint: Checkpoint, spec: ModelSpec) -> Checkpoint:
    """Return the checkpoint of a model, with its prediction head under DeepSeek's names.

    Raises StartError if the architecture has none that is known, or the checkpoint lacks it.
    """
    form = PREDICTORS.get(spec.architecture_name)
    if form is None:
        raise StartError(
            f"mtp is True, but no prediction head of {spec.architecture_name} is known, only of "
            f"{', '.join(PREDICTORS)}: leave mtp out"
        )
    names = spec.architecture.names
    layer = f"{names.layers}.{spec.num_layers}"
    tensors = {_renamed(name, form, layer): checkpoint.stored(name) for name in checkpoint.names()}
    if f"{layer}.{PROJECTION}.{names.matrix}" not in tensors:
        raise StartError(
            f"mtp is True, but {checkpoint.directory} has no prediction head "
            f"({layer}.{PROJECTION}): it was saved without; leave mtp out, or use the checkpoint "
            "as it was published"
        )
    return Checkpoint.of(checkpoint, tensors=tensors)


def _renamed(name: str, form: HeadForm, layer: str) -> str:
    name = re.sub(r"^model\.(?=mtp\.)", "", name)
    for stem, target in form.stems:
        if name.startswith(stem):
            return target.format(layer=layer) + name.removeprefix(stem)
    return name


def is_eagle(config: Config) -> bool:
    """Return whether `config` (config.json) describes an EAGLE-3 head."""
    return list(config.get("architectures") or []) == [EAGLE]


def eagle_layers(config: Config, num_layers: int) -> tuple[int, ...]:
    """Return the layers of a model whose inputs an EAGLE-3 head gets.

    Raises StartError if the model does not have them.
    """
    settings = config.get("eagle_config") or {}
    layers = settings.get("eagle_aux_hidden_state_layer_ids")
    layers = tuple(layers or (2, num_layers // 2, num_layers - 3))
    if len(set(layers)) < len(layers) or not all(0 <= layer < num_layers for layer in layers):
        raise StartError(
            f"the EAGLE-3 head gets the inputs of layers {list(layers)}, but the model has "
            f"{num_layers} layers: it belongs to another model"
        )
    return tuple(sorted(layers))


def eagle_spec(spec: ModelSpec, num_logits: int) -> ModelSpec:
    """Return the spec of an EAGLE-3 head; `spec` is that of its config.json as a Llama."""
    return replace(head_spec(spec), num_logits=num_logits)


def eagle_tensors(checkpoint: Checkpoint, layer: str) -> dict[str, StoredTensor]:
    """Return the tensors of an EAGLE-3 head under Llama's names."""
    tensors = {}
    for name in checkpoint.names():
        short = re.sub(r"^(model\.)?(midlayer|layers\.0)\.", f"{layer}.", name)
        short = re.sub(r"^(norm|embed_tokens)\.", r"model.\1.", short)
        tensors[short] = checkpoint.stored(name)
    return tensors


def eagle_ids(checkpoint: Checkpoint) -> npt.NDArray[np.int64] | None:
    """Return the model's token for each logit of an EAGLE-3 head; None if they are the same."""
    if not checkpoint.has(_OFFSETS):
        return None
    offsets = checkpoint.stored(_OFFSETS).bits.reshape(-1).view(np.int64)
    ids: npt.NDArray[np.int64] = np.arange(len(offsets)) + offsets
    return ids
