"""Towers for images and sounds of the transformers library, on PyTorch in float32."""

import inspect
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving import extras
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.images.messages import AUDIO, IMAGE, PHRASES
from mindspore_serving.llm.images.tower_pass import Inputs
from mindspore_serving.llm.step import Vectors

# By model_type: the axis of an input along which images lie, where that is not the first.
_AXES = {"minicpmv4_6": {"pixel_values": -1}}
Compute: TypeAlias = Callable[[Any, dict[str, Any]], Any]  # vectors, of a model and its inputs


class TorchTower:
    """Tower of a model of the library for what `kind` names.  Used by one thread."""

    def __init__(self, model: Any, kind: str, names: Collection[str], compute: Compute) -> None:
        self._model, self._kind, self.names, self._compute = model, kind, names, compute
        self._axes = _AXES.get(model.config.model_type, {})

    def run(self, images: Sequence[Inputs]) -> Vectors:
        """Return the vectors of images or sounds, as `TowerPass`."""
        import torch

        device = self._model.device
        try:
            with torch.inference_mode():
                inputs = {
                    name: torch.tensor(
                        np.concatenate([x[name] for x in images], self._axes.get(name, 0)),
                        device=device,
                    )
                    for name in images[0]
                }
                vectors: Vectors = self._compute(self._model, inputs).float().cpu().numpy()
        except (RuntimeError, IndexError, TypeError, ValueError, KeyError) as error:
            text = f"{PHRASES[self._kind]} cannot be computed: {error_text(error)}"
            raise ServingError(text) from error
        return vectors


def image_tower(model: Any) -> TorchTower:
    """Return the vision tower of a model."""
    names = frozenset(inspect.signature(model.get_image_features).parameters)
    return TorchTower(model, IMAGE, names, _IMAGES.get(model.config.model_type, _image_features))


def image_vectors(model: Any) -> Any:
    """Return a module that computes the vectors of images from their pixels alone."""
    import torch

    compute = _IMAGES.get(model.config.model_type, _image_features)

    class Vectors(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixel_values: Any) -> Any:
            return compute(self.model, {"pixel_values": pixel_values})

    return Vectors()


def sound_tower(model: Any) -> TorchTower:
    """Return the sound tower of a model."""
    names = ("input_features", "feature_attention_mask", "input_features_mask")
    return TorchTower(model, AUDIO, names, _SOUNDS.get(model.config.model_type, _features))


def _image_features(model: Any, inputs: dict[str, Any]) -> Any:
    import torch

    output = model.get_image_features(**inputs, return_dict=True)
    deeper = getattr(output, "deepstack_features", None) or ()
    return torch.cat([torch.cat(list(level)) for level in (output.pooler_output, *deeper)], -1)


def _features(model: Any, inputs: dict[str, Any]) -> Any:
    """Return vectors of sounds, with zeros for what images add to the first layers (DeepStack)."""
    import torch

    vectors = model.get_audio_features(**inputs, return_dict=True).last_hidden_state
    vision = getattr(model.config, "vision_config", None)
    levels = getattr(vision, "deepstack_visual_indexes", None) or ()
    return torch.cat([vectors, *(torch.zeros_like(vectors) for _ in levels)], -1)


def _qwen2_audio(model: Any, inputs: dict[str, Any]) -> Any:
    """Compute what the library does within the pass of its whole model."""
    import torch

    tower = model.audio_tower
    lengths, counts = tower._get_feat_extract_output_lengths(
        inputs["feature_attention_mask"].sum(-1)
    )
    features = inputs["input_features"]
    steps = torch.arange((features.shape[-1] - 2) // 2 + 1, device=features.device)
    hidden = steps[None] >= lengths[:, None]
    mask = torch.zeros(hidden.shape, device=features.device)
    mask = mask.masked_fill(hidden, torch.finfo(mask.dtype).min)[:, None, None]
    states = tower(features, attention_mask=mask).last_hidden_state
    vectors = model.multi_modal_projector(states)
    return torch.cat([each[:count] for each, count in zip(vectors, counts, strict=True)])


def _projected(model: Any, inputs: dict[str, Any]) -> Any:
    return model.get_audio_features(**inputs, return_dict=True).pooler_output


def _gemma4(model: Any, inputs: dict[str, Any]) -> Any:
    """Return the vectors that are not of padding."""
    output = model.get_audio_features(**inputs, return_dict=True)
    return output.pooler_output[output.attention_mask]


def _gemma3n_images(model: Any, inputs: dict[str, Any]) -> Any:
    """Return the vectors of each image, followed by that of its end."""
    import torch

    vectors = model.get_image_features(**inputs, return_dict=True).pooler_output
    name = torch.tensor([model.config.eoi_token_id], device=vectors.device)
    end = model.embed_vision(input_ids=name)
    ends = end.expand(vectors.shape[0], 1, -1)  # traced: `len` would be a constant
    return torch.cat([vectors, ends], 1).flatten(0, 1)


def _gemma3n_sounds(model: Any, inputs: dict[str, Any]) -> Any:
    """Compute what the library does within the pass of its whole model.

    The vectors of each sound are followed by those of padding, and by that of its end.
    """
    import torch

    config, embed = model.config, model.embed_audio
    output = model.audio_tower(inputs["input_features"], ~inputs["input_features_mask"])
    vectors = embed(inputs_embeds=output.last_hidden_state)
    names = torch.tensor([config.text_config.vocab_size - 1, config.eoa_token_id])
    padding, end = embed(input_ids=names.to(vectors.device))
    padded = padding.repeat(len(vectors), config.audio_soft_tokens_per_image + 1, 1)
    padded[:, : vectors.shape[1]] = torch.where(output.audio_mel_mask[..., None], padding, vectors)
    padded[:, -1] = end
    return padded.flatten(0, 1)


def library_form(settings: Any) -> tuple[Any, dict[str, str] | None]:
    """Return the settings and the new names of tensors by which the library reads a checkpoint.

    It reads Qwen3-ASR in another form than its makers publish; other settings are returned as they
    are, without names.
    """
    thinker = getattr(settings, "thinker_config", None)
    if settings.model_type != "qwen3_asr" or not isinstance(thinker, dict):
        return settings, None
    sounds, width = thinker["audio_config"], thinker["text_config"]["hidden_size"]
    changed = type(settings)(
        audio_config={"n_window": 100, "n_window_infer": 400, **sounds, "model_type": _ENCODER},
        text_config={"model_type": "qwen3", "hidden_size": width},
        audio_token_id=thinker["audio_token_id"],
    )
    return changed, _OF_THINKER


_ENCODER = "qwen3_asr_encoder"
_OF_THINKER = {  # by patterns
    r"^thinker\.audio_tower\.proj([12])": r"model.multi_modal_projector.linear_\1",
    r"^thinker\.audio_tower": "model.audio_tower",
    r"^thinker\.model": "model.language_model",
    r"^thinker\.lm_head": "lm_head",
}


def towers_alone(model_type: str, *, sees: bool, hears: bool) -> Any:
    """Return the library's class for the towers that are used, where these are loaded alone.

    Else return None.  The library makes Gemma 3n's vision tower by timm, which sounds do not need.
    """
    if model_type != "gemma3n":
        return None
    from transformers import AutoModel
    from transformers.models.gemma3n import modeling_gemma3n as library

    class Towers(library.Gemma3nPreTrainedModel):  # type: ignore[misc]
        get_image_features = library.Gemma3nModel.get_image_features

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            embedder, text = library.Gemma3nMultimodalEmbedder, config.text_config
            if sees:
                self.vision_tower = AutoModel.from_config(config.vision_config)
                self.embed_vision = embedder(config.vision_config, text)
            if hears:
                self.audio_tower = library.Gemma3nAudioEncoder(config.audio_config)
                self.embed_audio = embedder(config.audio_config, text)
            self.post_init()

    return Towers


def check_libraries(model_type: str) -> None:
    """Raise StartError unless the libraries of the vision tower of `model_type` can be imported."""
    if model_type != "gemma3n":
        return
    try:
        import_module("timm")
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "the vision tower of Gemma 3n")) from error
    except Exception as error:  # torchvision's, beside another build of PyTorch
        raise StartError(
            "the vision tower of Gemma 3n needs timm, which cannot be imported: "
            f"{error_text(error)}; install torch and torchvision from the same index, as builds "
            "for CPUs and for CUDA do not fit"
        ) from error


_IMAGES: dict[str, Compute] = {"gemma3n": _gemma3n_images}
_SOUNDS: dict[str, Compute] = {
    "gemma3n": _gemma3n_sounds,
    "gemma4": _gemma4,
    "qwen2_audio": _qwen2_audio,
    "qwen3_asr": _projected,
    "voxtral": _projected,
}
