"""Vectors of pictures, by the vision tower and the projection of a model that takes them.

Both are the transformers library's, on PyTorch in float32, whatever runtime computes the language
model: a picture is computed once, and then found by the hash of its content.
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
from mindspore_serving.llm.checkpoint.leftovers import LEFTOVERS, PICTURES
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.reader import Picture, to_arrays
from mindspore_serving.llm.step import Vectors

MAX_KEPT = 256 << 20  # bytes of vectors


class Tower:
    """Of one model.  Used by one thread.

    `num_computed` counts pictures that were not found.
    """

    def __init__(self, model: Any, most: int = MAX_KEPT) -> None:
        self._model = model
        self._names = frozenset(inspect.signature(model.get_image_features).parameters)
        self._most = most
        self._kept: OrderedDict[bytes, Vectors] = OrderedDict()
        self._num_bytes = 0
        self.num_computed = 0

    @classmethod
    def open(cls, directory: Path, config: EngineConfig) -> "Tower":
        """Raises StartError: no library, weights that are missing or do not fit."""
        return cls(_load(directory, config))

    def see(self, pictures: Sequence[Picture]) -> list[tuple[bytes, Vectors]]:
        """The hash of each picture and its vectors, float32 [count, hidden_size].  Raises
        ServingError.
        """
        return [(picture.digest, self._find(picture)) for picture in pictures]

    def _find(self, picture: Picture) -> Vectors:
        vectors = self._kept.pop(picture.digest, None)
        if vectors is None:
            vectors = self._compute(picture)
            self._num_bytes += vectors.nbytes
            self.num_computed += 1
        self._kept[picture.digest] = vectors
        while self._num_bytes > self._most:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.nbytes
        return vectors

    def _compute(self, picture: Picture) -> Vectors:
        import torch

        device = self._model.device
        given = {name: x for name, x in to_arrays(picture).items() if name in self._names}
        try:
            with torch.inference_mode():
                inputs = {name: torch.tensor(x, device=device) for name, x in given.items()}
                found = self._model.get_image_features(**inputs, return_dict=True).pooler_output
                vectors: Vectors = torch.cat(list(found)).float().cpu().numpy()
        except (RuntimeError, IndexError, TypeError, ValueError, KeyError) as error:
            raise ServingError(f"a picture cannot be computed: {error_text(error)}") from error
        if len(vectors) != picture.count:
            raise ServingError(
                f"a picture has {len(vectors)} vectors and {picture.count} tokens: the image "
                "processor's sizes are not those of config.json"
            )
        return np.ascontiguousarray(vectors)


def _load(directory: Path, config: EngineConfig) -> Any:
    """The library's model without its language model, of which nothing is read."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "a model that takes images")) from error
    from mindspore_serving.llm.runtimes.torch.opening import open_device

    transformers.logging.disable_progress_bar()
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # of the language model's tensors
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
            attn_implementation="eager",  # a name in config.json may be of code elsewhere
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # the library has no errors of its own
        raise StartError(
            f"transformers cannot load the vision tower of {directory}: {error_text(error)}"
        ) from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    for name in sorted(name for name in loaded["unexpected_keys"] if PICTURES.has(name, ())):
        if not any(row.has(name, ()) for row in LEFTOVERS if row is not PICTURES):
            raise StartError(f"{directory} has a tensor {name!r}, which its vision tower has not")
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
    return config
