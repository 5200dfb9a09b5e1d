"""Vision towers on CPUs by OpenVINO, in the precision of the language model."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from mindspore_serving import extras, log
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError, StartError
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.gguf.projector import find_projector, read_tower
from mindspore_serving.llm.checkpoint.leftovers import IMAGES, LEFTOVERS
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.checkpoint.weights import Checkpoint, TrackedCheckpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.graphs import TowerGraph
from mindspore_serving.llm.images.reader import open_processor
from mindspore_serving.llm.images.tower_pass import MAX_BATCH_BYTES, Inputs
from mindspore_serving.llm.images.tower_settings import TowerSettings, find_settings
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights
from mindspore_serving.llm.step import Vectors

# Tensors that other models of a family use: layers behind the last that is used, and their pooling.
UNUSED = re.compile(r".*\.(layers\.(\d+)|post_layernorm|head)\..*")

_OF_IMAGES = (  # settings of config.json that are not of the text model alone
    "architectures", "model_type", "vision_config", "scale_factor", "mm_tokens_per_image",
)  # fmt: skip


class GraphTower:
    """Vision tower as a compiled graph.  Used by one thread.

    `kept` are the arrays of its constants.  A tile is an image of `size` x `size` pixels.
    """

    names = ("pixel_values", "pixel_attention_mask")

    def __init__(self, compiled: Any, settings: TowerSettings, kept: list[Any]) -> None:
        self._request = compiled.create_infer_request()
        self._size, self._kept = settings.image_size, kept

    def run(self, images: Sequence[Inputs]) -> Vectors:
        """Return the vectors of images, as `TowerPass`."""
        for image in images:
            self._check(image)
        tiles = np.concatenate([x["pixel_values"].reshape(-1, *self._shape) for x in images])
        count = max(1, MAX_BATCH_BYTES // (tiles[0].nbytes or 1))
        vectors = [self._infer(tiles[i : i + count]) for i in range(0, len(tiles), count)]
        return np.concatenate(vectors)

    @property
    def _shape(self) -> tuple[int, int, int]:
        return 3, self._size, self._size

    def _check(self, image: Inputs) -> None:
        """Raise ServingError unless these are full tiles of the size that the graph takes."""
        shape, mask = image["pixel_values"].shape, image.get("pixel_attention_mask")
        if shape[-3:] != self._shape or (mask is not None and not mask.all()):
            raise ServingError(
                f"an image cannot be computed: it has pixels {list(shape)}, expected "
                f"{self._size} x {self._size} without padding: the sizes of the image processor do "
                "not match config.json"
            )

    def _infer(self, tiles: Any) -> Vectors:
        self._request.set_tensor("pixel_values", ov.Tensor(np.ascontiguousarray(tiles, np.float32)))
        try:
            self._request.infer()
        except RuntimeError as error:
            raise ServingError(f"an image cannot be computed: {error_text(error)}") from error
        vectors: Vectors = self._request.get_output_tensor(0).data
        return vectors.reshape(-1, vectors.shape[-1]).copy()


def open_graph_tower(directory: Path, config: EngineConfig) -> GraphTower | None:
    """Open the tower of the model in `directory`; None if its family has no graph.

    Of `config`: `dtype`, `num_threads` as in `options_from`.  Matrices are not quantised.

    Raises StartError: a library is missing, or weights are missing or do not fit.
    """
    projector = find_projector(directory) if is_gguf(directory) else None
    settings = find_settings(_read_config(directory))
    if settings is None or not _has_full_tiles(directory, settings):
        return None
    if projector is None:
        checkpoint = Checkpoint.open(directory).tracked()
    else:
        checkpoint = Checkpoint(projector.path, {}, read_tower(projector)).tracked()
    options = options_from(config, capabilities(config.num_threads))
    weights = OpenVINOWeights(checkpoint, options.precision, is_exact=True)
    graph = TowerGraph(weights, checkpoint.names(), settings).build()
    _check_unread(checkpoint, max(settings.outputs))
    tower = GraphTower(
        compile_graph(graph, options.properties(weights.constants.group, is_exact=True)),
        settings,
        weights.constants.kept,
    )
    size = settings.image_size
    tower.run([{"pixel_values": np.zeros((1, 3, size, size), np.float32)}])  # packs the weights
    checkpoint.release()
    log.info("%s: images run on openvino in %s", directory.name, options.precision)
    return tower


def _has_full_tiles(directory: Path, settings: TowerSettings) -> bool:
    """Return whether the image processor makes images, or tiles, of the size that positions are of.

    Idefics3 has positions of parts of a side as well.
    """
    if settings.projector != "shuffle":
        return True
    size = getattr(open_processor(directory), "max_image_size", None)
    return size is not None and bool(size["longest_edge"] == settings.image_size)


def _check_unread(checkpoint: TrackedCheckpoint, num_layers: int) -> None:
    """Raise StartError for a tensor of images that the graph does not have."""
    for name in sorted(set(checkpoint.names()) - checkpoint.read):
        if not IMAGES.has(name, ()) or any(
            row.has(name, checkpoint.shape(name)) for row in LEFTOVERS if row is not IMAGES
        ):
            continue
        match = UNUSED.fullmatch(name)
        if match is None or (match[2] and int(match[2]) < num_layers):
            raise StartError(
                f"{checkpoint.directory} has a tensor {name!r}, which its vision tower lacks"
            )


def _read_config(directory: Path) -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise StartError(extras.missing(error, "a model that takes images")) from error
    if is_gguf(directory):
        fields = find_config(directory)
        return transformers.AutoConfig.for_model(
            **{name: value for name, value in fields.items() if name in _OF_IMAGES}
        )
    try:
        return transformers.AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the library has no errors of its own
        raise StartError(
            f"transformers cannot read config.json of {directory}: {error_text(error)}"
        ) from error
