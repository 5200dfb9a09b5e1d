"""Vectors of images and sounds, computed by the towers and projections of a multimodal model.

Images of one size are computed together, and so are sounds of one length.  Each is computed once,
and then looked up by the hash of its file.
"""

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
from mindspore_serving.llm.checkpoint.leftovers import IMAGES, LEFTOVERS, SOUNDS
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.messages import AUDIO, PHRASES
from mindspore_serving.llm.images.prompt_formats import find_prompt_format
from mindspore_serving.llm.images.reader import PreparedImage, to_arrays
from mindspore_serving.llm.images.sound_formats import find_sound_format
from mindspore_serving.llm.images.torch_tower import (
    image_tower,
    library_form,
    sound_tower,
    towers_alone,
)
from mindspore_serving.llm.images.tower_pass import MAX_BATCH_BYTES, Inputs, TowerPass
from mindspore_serving.llm.step import Vectors

GRAPH_RUNTIMES = (OPENVINO, COMBINED)
_TRACED = ("gemma3n",)  # towers that the library makes by timm
MAX_CACHED_BYTES = 256 << 20  # of vectors
Computed: TypeAlias = list[tuple[bytes, Vectors]]  # hash of each image, and its vectors


class Tower:
    """Towers of one model for images and for sounds, with a cache of vectors.  Used by one thread.

    `num_computed` counts the images and sounds that were not in the cache.  A batch has at most
    `max_batch_bytes` of inputs, or a single image.
    """

    def __init__(
        self,
        tower_pass: TowerPass | None,
        max_bytes: int = MAX_CACHED_BYTES,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        sound_pass: TowerPass | None = None,
    ) -> None:
        self._pass, self._sound_pass = tower_pass, sound_pass
        self._max_bytes, self._max_batch_bytes = max_bytes, max_batch_bytes
        self._cached: OrderedDict[bytes, Vectors] = OrderedDict()
        self._num_bytes = 0
        self.num_computed = 0

    @classmethod
    def open(cls, directory: Path, config: EngineConfig, runtime: str = "") -> "Tower":
        """Load the towers of the model in `directory`, for a model that `runtime` computes.

        Raises StartError: a library is missing, or weights are missing or do not fit.
        """
        bound = 0 if config.deterministic else MAX_BATCH_BYTES
        seeing, hearing = _open_passes(directory, config, runtime)
        return cls(seeing, max_batch_bytes=bound, sound_pass=hearing)

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
                groups.setdefault((image.kind, *shapes), []).append(image)
        for group in groups.values():
            size = sum(len(array.content) for array in group[0].inputs.values())
            count = max(1, self._max_batch_bytes // max(1, size))
            for begin in range(0, len(group), count):
                results |= self._compute(group[begin : begin + count])
        return [_of_request(images, results) for images in requests]

    def _compute(self, images: Sequence[PreparedImage]) -> dict[bytes, Vectors | ServingError]:
        """Compute images of equal shapes together; each by itself if that fails."""
        try:
            tower = self._pass_of(images[0])
            vectors = tower.run([self._inputs(image) for image in images])
            if len(vectors) != sum(image.count for image in images):
                phrase, count = PHRASES[images[0].kind], images[0].count
                raise ServingError(
                    f"{phrase} has {len(vectors) // len(images)} vectors, but {count} tokens in "
                    "the prompt: the sizes of its processor do not match config.json"
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
        names = self._pass_of(image).names
        return {name: x for name, x in to_arrays(image).items() if name in names}

    def _pass_of(self, image: PreparedImage) -> TowerPass:
        tower = self._sound_pass if image.kind == AUDIO else self._pass
        assert tower is not None
        return tower

    def _store(self, digest: bytes, vectors: Vectors) -> None:
        self.num_computed += 1
        self._cached[digest] = vectors
        self._num_bytes += vectors.nbytes
        while self._num_bytes > self._max_bytes:
            _, oldest = self._cached.popitem(last=False)
            self._num_bytes -= oldest.nbytes


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


def _open_passes(
    directory: Path, config: EngineConfig, runtime: str
) -> tuple[TowerPass | None, TowerPass | None]:
    """Return the towers for images and for sounds, None for what the model does not take."""
    fields = find_config(directory)
    sees = config.max_images > 0 and find_prompt_format(fields) is not None
    hears = config.max_audios > 0 and find_sound_format(fields) is not None
    seeing: TowerPass | None = _open_graph(directory, config, runtime) if sees else None
    lacks_images = sees and seeing is None
    if not hears and not lacks_images:
        return seeing, None
    model = _load(directory, config, sees=lacks_images, hears=hears)
    if lacks_images:
        seeing = _open_library_tower(model, directory, config, runtime)
    return seeing, sound_tower(model) if hears else None


def _open_graph(directory: Path, config: EngineConfig, runtime: str) -> TowerPass | None:
    if runtime not in GRAPH_RUNTIMES and not is_gguf(directory):
        return None
    from mindspore_serving.llm.images.graph_tower import open_graph_tower

    return open_graph_tower(directory, config)


def _open_library_tower(
    model: Any, directory: Path, config: EngineConfig, runtime: str
) -> TowerPass:
    """Return the vision tower of the library's model, traced to a graph where that is known."""
    if runtime in GRAPH_RUNTIMES and model.config.model_type in _TRACED:
        from mindspore_serving.llm.images.traced_tower import open_traced_tower

        return open_traced_tower(model, directory, config)
    if runtime in GRAPH_RUNTIMES:
        log.warning(
            "%s: images run on torch in float32: their tower is not of a family with a graph",
            directory.name,
        )
    return image_tower(model)


def _load(directory: Path, config: EngineConfig, *, sees: bool, hears: bool) -> Any:
    """Load the library's model without its language model."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "a model that takes images or sounds")) from error
    from mindspore_serving.llm.runtimes.torch.opening import attention_of, open_device

    transformers.logging.disable_progress_bar()
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # about the tensors of the language model
    try:
        settings = transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        settings, names = library_form(settings)
        alone = towers_alone(settings.model_type, sees=sees, hears=hears)
        if alone is None:
            settings = _without_language(settings, hears=hears)
        model, loaded = (alone or transformers.AutoModelForMultimodalLM).from_pretrained(
            directory,
            config=settings,
            key_mapping=names,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            attn_implementation=attention_of(settings, "sdpa", audio_config="eager"),
            dtype=torch.float32,
            output_loading_info=True,
        )
    except Exception as error:  # the library has no errors of its own
        raise StartError(
            f"transformers cannot load the towers of {directory}: {error_text(error)}"
        ) from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    read = (*([IMAGES] if sees or not alone else []), *([SOUNDS] if hears else []))
    for name in sorted(loaded["unexpected_keys"]):
        if any(row.has(name, ()) for row in read) and not any(
            row.has(name, ()) for row in LEFTOVERS if row not in read
        ):
            raise StartError(f"{directory} has a tensor {name!r}, which its towers lack")
    wrong = [*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])]
    for name in sorted(wrong):
        if not name.endswith(("lm_head.weight", "embed_tokens.weight")):
            raise StartError(f"{directory} has no tensor {name!r} of the size that its model needs")
    towers = model if alone else model.model
    if not hears and getattr(towers, "audio_tower", None) is not None:
        towers.audio_tower = None
    return towers.eval().to(open_device(config.device))


def _without_language(config: Any, *, hears: bool) -> Any:
    config = getattr(config, "thinker_config", config)  # of Qwen-Omni
    text = config.text_config
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    if getattr(text, "layer_types", None):
        text.layer_types = []
    if getattr(text, "hidden_size_per_layer_input", None):  # Gemma 4's table, of all its tokens
        text.hidden_size_per_layer_input = 0
    if not hears and not config.model_type.endswith("_thinker"):  # which need one
        config.audio_config = None
    return config
