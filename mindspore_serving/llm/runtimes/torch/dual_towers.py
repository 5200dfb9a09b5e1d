"""Towers for texts and images of one model, of the transformers library on PyTorch in float32."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving import extras
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.models.dual import DualFamily, find_dual
from mindspore_serving.llm.step import Vectors
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer

Image = Mapping[str, Any]  # inputs of the vision tower by name, each with a batch of one


class DualTowers:
    """Both towers of a model, whose vectors have `hidden_size` numbers.  Used by one thread.

    `padding` is the token behind the end of a text.  `scale` and `bias` make logits of the cosine
    of two vectors.
    """

    def __init__(self, model: Any, family: DualFamily, padding: int, max_length: int) -> None:
        text = model.config.text_config
        self.family = family
        self.max_model_len = max_length
        self.vocab_size: int = text.vocab_size
        self.num_types = 1
        self._model = model
        self._padding = padding
        self._num_positions: int = text.max_position_embeddings
        self.scale = float(model.logit_scale.detach().exp())
        self.bias = float(model.logit_bias.detach()) if hasattr(model, "logit_bias") else 0.0
        self.hidden_size = int(self.embed_texts([[padding]]).shape[1])

    @classmethod
    def open(cls, directory: Path, tokenizer: Tokenizer, config: EngineConfig) -> "DualTowers":
        """Load the model in `directory`.

        Raises StartError: a library is missing, the architecture is another, weights are missing or
        do not fit, or `max_model_len` is beyond the positions.
        """
        family = find_dual(find_config(directory))
        if family is None:
            raise StartError(f"{directory} has no model with towers for texts and images")
        model = _load(directory, config)
        text = model.config.text_config
        longest = config.max_model_len or text.max_position_embeddings
        if longest > text.max_position_embeddings:
            raise StartError(
                f"max_model_len is {longest}, but the model has {text.max_position_embeddings} "
                "positions"
            )
        try:
            return cls(model, family, _find_padding(text, family, tokenizer), longest)
        except ServingError as error:
            raise StartError(f"{directory} cannot be used: {error}") from error

    def run(
        self, prompts: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Vectors:
        """Return the vectors of texts, which have no types."""
        return self.embed_texts(prompts)

    def embed_texts(self, texts: Sequence[Sequence[int]]) -> Vectors:
        """Return the vectors of tokens, float32 [texts, hidden_size], not scaled.

        Raises ServingError.
        """
        longest = max(len(ids) for ids in texts)
        width = self._num_positions if self.family.is_padded else longest
        ids = np.full((len(texts), width), self._padding, np.int64)
        for row, tokens in enumerate(texts):
            ids[row, : len(tokens)] = tokens
        return self._compute("get_text_features", {"input_ids": ids})

    def embed_images(self, images: Sequence[Image]) -> Vectors:
        """Return the vectors of images, float32 [images, hidden_size], not scaled.

        Images of equal shapes are computed together.  Raises ServingError.
        """
        groups: dict[tuple[Any, ...], list[int]] = {}
        for index, image in enumerate(images):
            shapes = tuple((name, image[name].shape) for name in sorted(image))
            groups.setdefault(shapes, []).append(index)
        vectors = np.empty((len(images), self.hidden_size), np.float32)
        for group in groups.values():
            names = images[group[0]]
            batch = {name: np.concatenate([images[i][name] for i in group]) for name in names}
            vectors[group] = self._compute("get_image_features", batch)
        return vectors

    def close(self) -> None:
        self._model = None

    def _compute(self, method: str, inputs: Mapping[str, Any]) -> Vectors:
        import torch

        model = self._model
        try:
            with torch.inference_mode():
                tensors = {name: torch.tensor(x, device=model.device) for name, x in inputs.items()}
                output = getattr(model, method)(**tensors, return_dict=True).pooler_output
                vectors: Vectors = output.float().cpu().numpy()
        except (RuntimeError, IndexError, TypeError, ValueError, KeyError) as error:
            raise ServingError(f"a pass of the model failed: {error_text(error)}") from error
        return vectors


def _find_padding(text: Any, family: DualFamily, tokenizer: Tokenizer) -> int:
    """Return the token behind the end of a text.

    A text of CLIP ends at its first end token, or its largest, and later tokens change nothing: the
    padding is neither.
    """
    if not family.is_padded:
        return 1 if text.eos_token_id == 0 else 0
    token = tokenizer.token_id(tokenizer.special_tokens.get("pad_token", ""))
    return int(text.pad_token_id or 0) if token is None else token


def _load(directory: Path, config: EngineConfig) -> Any:
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "a model that takes images")) from error
    from mindspore_serving.llm.runtimes.torch.opening import open_device

    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    transformers.logging.disable_progress_bar()
    try:
        model, loaded = transformers.AutoModel.from_pretrained(
            directory,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            attn_implementation="sdpa",  # a name in config.json could refer to code elsewhere
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # the library has no errors of its own
        raise StartError(f"transformers cannot load {directory}: {error_text(error)}") from error
    missing = sorted(loaded["missing_keys"])
    if missing:
        raise StartError(f"{directory} has no tensor {missing[0]!r}, which its model needs")
    return model.eval().to(open_device(config.device))
