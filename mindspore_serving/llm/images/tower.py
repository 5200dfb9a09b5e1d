"""Vectors of images, computed by the vision tower and projection of a multimodal model.

Both are those of the transformers library, on PyTorch in float32, whichever runtime computes the
language model. An image is computed once and then looked up by the hash of its file.
"""

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mindspore_serving import extras
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.leftovers import IMAGES, LEFTOVERS
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.reader import PreparedImage, to_arrays
from mindspore_serving.llm.step import Vectors

MAX_CACHED_BYTES = 256 << 20  # of vectors


class Tower:
    """Vision tower of one model, with a cache of vectors.  Used by one thread.

    `num_computed` counts the images that were not in the cache.
    """

    def __init__(self, model: Any, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._model = model
        self._names = frozenset(inspect.signature(model.get_image_features).parameters)
        self._max_bytes = max_bytes
        self._cached: OrderedDict[bytes, Vectors] = OrderedDict()
        self._num_bytes = 0
        self.num_computed = 0

    @classmethod
    def open(cls, directory: Path, config: EngineConfig) -> "Tower":
        """Load the tower of the model in `directory`.

        Raises StartError: a library is missing, or weights are missing or do not fit.
        """
        return cls(_load(directory, config))

    def compute(self, images: Sequence[PreparedImage]) -> list[tuple[bytes, Vectors]]:
        """Return the hash of each image and its vectors, float32 [count, hidden_size].

        Raises ServingError if the vectors cannot be computed.
        """
        return [(image.digest, self._get(image)) for image in images]

    def _get(self, image: PreparedImage) -> Vectors:
        vectors = self._cached.pop(image.digest, None)
        if vectors is None:
            vectors = self._compute(image)
            self._num_bytes += vectors.nbytes
            self.num_computed += 1
        self._cached[image.digest] = vectors
        while self._num_bytes > self._max_bytes:
            _, oldest = self._cached.popitem(last=False)
            self._num_bytes -= oldest.nbytes
        return vectors

    def _compute(self, image: PreparedImage) -> Vectors:
        import torch

        device = self._model.device
        arrays = {name: x for name, x in to_arrays(image).items() if name in self._names}
        try:
            with torch.inference_mode():
                inputs = {name: torch.tensor(x, device=device) for name, x in arrays.items()}
                features = self._model.get_image_features(**inputs, return_dict=True).pooler_output
                vectors: Vectors = torch.cat(list(features)).float().cpu().numpy()
        except (RuntimeError, IndexError, TypeError, ValueError, KeyError) as error:
            raise ServingError(f"an image cannot be computed: {error_text(error)}") from error
        if len(vectors) != image.count:
            raise ServingError(
                f"an image has {len(vectors)} vectors, but {image.count} tokens in the prompt: the "
                "sizes of the image processor do not match config.json"
            )
        return np.ascontiguousarray(vectors)


def _load(directory: Path, config: EngineConfig) -> Any:
    """Load the library's model without its language model."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "a model that takes images")) from error
    from mindspore_serving.llm.runtimes.torch.opening import open_device

    transformers.logging.disable_progress_bar()
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # about the tensors of the language model
    try:
        model, loaded = transformers.AutoModelForImageTextToText.from_pretrained(
            directory,
            config=_without_language(
                transformers.AutoConfig.from_pretrained(
                    directory, local_files_only=True, trust_remote_code=False
                )
            ),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            attn_implementation="eager",  # config.json could name a kernel to download
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # the library has no errors of its own
        raise StartError(
            f"transformers cannot load the vision tower of {directory}: {error_text(error)}"
        ) from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    for name in sorted(name for name in loaded["unexpected_keys"] if IMAGES.has(name, ())):
        if not any(row.has(name, ()) for row in LEFTOVERS if row is not IMAGES):
            raise StartError(f"{directory} has a tensor {name!r}, which its vision tower lacks")
    wrong = [*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])]
    for name in sorted(wrong):
        if not name.endswith(("lm_head.weight", "embed_tokens.weight")):
            raise StartError(f"{directory} has no tensor {name!r} of the size that its model needs")
    return model.model.eval().to(open_device(config.device))


def _without_language(config: Any) -> Any:
    text = config.text_config
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    if getattr(text, "layer_types", None):
        text.layer_types = []
    if getattr(text, "hidden_size_per_layer_input", None):  # Gemma 4's table, of all its tokens
        text.hidden_size_per_layer_input = 0
    if getattr(config, "audio_config", None) is not None:
        config.audio_config = None
    return config
