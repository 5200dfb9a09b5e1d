"""Vectors of images, computed by the vision tower and projection of a multimodal model.

Images of one size are computed together.  An image is computed once, and then looked up by the hash
of its file.
"""

import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mindspore_serving import extras, log
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.catalog import COMBINED, OPENVINO
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.leftovers import IMAGES, LEFTOVERS
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.reader import PreparedImage, to_arrays
from mindspore_serving.llm.images.tower_pass import MAX_BATCH_BYTES, Inputs, TowerPass
from mindspore_serving.llm.step import Vectors

GRAPH_RUNTIMES = (OPENVINO, COMBINED)
MAX_CACHED_BYTES = 256 << 20  # of vectors
# By model_type: the axis of an input along which images lie, where that is not the first.
_AXES = {"minicpmv4_6": {"pixel_values": -1}}
Computed: TypeAlias = list[tuple[bytes, Vectors]]  # hash of each image, and its vectors


class Tower:
    """Vision tower of one model, with a cache of vectors.  Used by one thread.

    `num_computed` counts the images that were not in the cache.  A batch has at most
    `max_batch_bytes` of inputs, or a single image.
    """

    def __init__(
        self,
        tower_pass: TowerPass,
        max_bytes: int = MAX_CACHED_BYTES,
        max_batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._pass = tower_pass
        self._max_bytes, self._max_batch_bytes = max_bytes, max_batch_bytes
        self._cached: OrderedDict[bytes, Vectors] = OrderedDict()
        self._num_bytes = 0
        self.num_computed = 0

    @classmethod
    def open(cls, directory: Path, config: EngineConfig, runtime: str = "") -> "Tower":
        """Load the tower of the model in `directory`, for a model that `runtime` computes.

        Raises StartError: a library is missing, or weights are missing or do not fit.
        """
        bound = 0 if config.deterministic else MAX_BATCH_BYTES
        return cls(_open_pass(directory, config, runtime), max_batch_bytes=bound)

    def compute(self, images: Sequence[PreparedImage]) -> Computed:
        """Return the hash of each image and its vectors, float32 [count, image_features].

        Raises ServingError if the vectors cannot be computed.
        """
        (computed,) = self.compute_all([images])
        if isinstance(computed, ServingError):
            raise computed
        return computed

    def compute_all(
        self, requests: Sequence[Sequence[PreparedImage]]
    ) -> list[Computed | ServingError]:
        """Return what `compute` does for the images of each request, or raises.

        An image of several requests is computed once.
        """
        needed = {image.digest: image for images in requests for image in images}
        results: dict[bytes, Vectors | ServingError] = {}
        groups: dict[Any, list[PreparedImage]] = {}
        for digest, image in needed.items():
            if digest in self._cached:
                self._cached.move_to_end(digest)
                results[digest] = self._cached[digest]
            else:
                shapes = ((n, x.dtype, x.shape) for n, x in sorted(image.inputs.items()))
                groups.setdefault(tuple(shapes), []).append(image)
        for group in groups.values():
            size = sum(len(array.content) for array in group[0].inputs.values())
            count = max(1, self._max_batch_bytes // max(1, size))
            for begin in range(0, len(group), count):
                results |= self._compute(group[begin : begin + count])
        return [_of_request(images, results) for images in requests]

    def _compute(self, images: Sequence[PreparedImage]) -> dict[bytes, Vectors | ServingError]:
        """Compute images of equal shapes together; each by itself if that fails."""
        try:
            vectors = self._pass.run([self._inputs(image) for image in images])
            if len(vectors) != sum(image.count for image in images):
                raise ServingError(
                    f"an image has {len(vectors) // len(images)} vectors, but {images[0].count} "
                    "tokens in the prompt: the sizes of the image processor do not match "
                    "config.json"
                )
        except ServingError as error:
            if len(images) == 1:
                return {images[0].digest: error}
            results: dict[bytes, Vectors | ServingError] = {}
            for image in images:
                results |= self._compute([image])
            return results
        ends = np.cumsum([image.count for image in images])[:-1]
        parts = np.split(vectors, ends)
        for image, part in zip(images, parts, strict=True):
            self._store(image.digest, np.ascontiguousarray(part))
        return {image.digest: part for image, part in zip(images, parts, strict=True)}

    def _inputs(self, image: PreparedImage) -> Inputs:
        return {name: x for name, x in to_arrays(image).items() if name in self._pass.names}

    def _store(self, digest: bytes, vectors: Vectors) -> None:
        self.num_computed += 1
        self._cached[digest] = vectors
        self._num_bytes += vectors.nbytes
        while self._num_bytes > self._max_bytes:
            _, oldest = self._cached.popitem(last=False)
            self._num_bytes -= oldest.nbytes


class TorchTower:
    """Vision tower of the transformers library, on PyTorch in float32."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._axes = _AXES.get(model.config.model_type, {})
        self.names = frozenset(inspect.signature(model.get_image_features).parameters)

    def run(self, images: Sequence[Inputs]) -> Vectors:
        """Return the vectors of images, as `TowerPass`."""
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
                output = self._model.get_image_features(**inputs, return_dict=True)
                deeper = getattr(output, "deepstack_features", None) or ()
                levels = [torch.cat(list(level)) for level in (output.pooler_output, *deeper)]
                vectors: Vectors = torch.cat(levels, -1).float().cpu().numpy()
        except (RuntimeError, IndexError, TypeError, ValueError, KeyError) as error:
            raise ServingError(f"an image cannot be computed: {error_text(error)}") from error
        return vectors


def _of_request(
    images: Sequence[PreparedImage], results: Mapping[bytes, Vectors | ServingError]
) -> Computed | ServingError:
    computed: Computed = []
    for image in images:
        result = results[image.digest]
        if isinstance(result, ServingError):
            return result
        computed.append((image.digest, result))
    return computed


def _open_pass(directory: Path, config: EngineConfig, runtime: str) -> TowerPass:
    if runtime in GRAPH_RUNTIMES or is_gguf(directory):
        from mindspore_serving.llm.images.graph_tower import open_graph_tower

        tower = open_graph_tower(directory, config)
        if tower is not None:
            return tower
        log.warning(
            "%s: images run on torch in float32: their tower is not of a family with a graph",
            directory.name,
        )
    return TorchTower(_load(directory, config))


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
