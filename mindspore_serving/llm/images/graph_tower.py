"""Vision towers on CPUs by OpenVINO, in the precision of the language model."""

import re
from pathlib import Path
from typing import Any

from mindspore_serving import extras, log
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import StartError
from mindspore_serving.llm.checkpoint.gguf.files import is_gguf
from mindspore_serving.llm.checkpoint.gguf.projector import find_projector, read_tower
from mindspore_serving.llm.checkpoint.leftovers import IMAGES, LEFTOVERS
from mindspore_serving.llm.checkpoint.model_files import find_config
from mindspore_serving.llm.checkpoint.weights import Checkpoint, TrackedCheckpoint
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.graphs import TileGraph
from mindspore_serving.llm.images.patch_graphs import PatchGraph
from mindspore_serving.llm.images.patch_settings import PatchSettings, find_patch_settings
from mindspore_serving.llm.images.reader import open_processor
from mindspore_serving.llm.images.tower_pass import TowerPass
from mindspore_serving.llm.images.tower_passes import PatchTower, TileTower
from mindspore_serving.llm.images.tower_settings import TowerSettings, find_settings
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.runtimes.openvino.options import PluginOptions, options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.runtimes.openvino.weights import OpenVINOWeights

# Tensors that other models of a family use: layers behind the last that is used, and their pooling.
UNUSED = re.compile(
    r".*\.(layers?\.(\d+)|post_layernorm|layernorm|head|vit_merger|embeddings\.mask_token)\b.*"
)
_NEWLINE = "image_newline"

_OF_IMAGES = (  # settings of config.json that are not of the text model alone
    "architectures", "model_type", "vision_config", "scale_factor", "mm_tokens_per_image",
    "downsample_ratio",
)  # fmt: skip


def open_graph_tower(directory: Path, config: EngineConfig) -> TowerPass | None:
    """Open the tower of the model in `directory`; None if its family has no graph.

    Of `config`: `dtype`, `num_threads` as in `options_from`.  Matrices are not quantised.

    Raises StartError: a library is missing, or weights are missing or do not fit.
    """
    projector = find_projector(directory) if is_gguf(directory) else None
    fields = _read_config(directory)
    settings = find_settings(fields) or find_patch_settings(fields)
    if settings is None or not _has_full_tiles(directory, settings):
        return None
    if projector is None:
        checkpoint = Checkpoint.open(directory).tracked()
    else:
        checkpoint = Checkpoint(projector.path, {}, read_tower(projector)).tracked()
    options = options_from(config, capabilities(config.num_threads))
    weights = OpenVINOWeights(checkpoint, options.precision, is_exact=True)
    tower = _opened(weights, checkpoint, settings, options)
    _check_unread(checkpoint, max(settings.outputs))
    tower.warm_up()
    checkpoint.release()
    log.info("%s: images run on openvino in %s", directory.name, options.precision)
    return tower


def _opened(
    weights: OpenVINOWeights,
    checkpoint: Checkpoint,
    settings: TowerSettings | PatchSettings,
    options: PluginOptions,
) -> TileTower | PatchTower:
    """Return the tower with `settings` as a compiled graph."""

    def compiled(graph: Any) -> Any:
        return compile_graph(graph, options.properties(weights.constants.group, is_exact=True))

    kept, names = weights.constants.kept, checkpoint.names()
    if isinstance(settings, PatchSettings):
        builder = PatchGraph(weights, names, settings)
        graph, name = builder.build(), builder.table_name
        table = checkpoint.f32(name) if name else None
        return PatchTower(compiled(graph), settings, kept, table)
    newline = next((name for name in names if name.endswith(_NEWLINE)), "")
    if settings.tiles is not None and not newline:
        raise StartError(f"the model has no tensor '*{_NEWLINE}', which its images need")
    return TileTower(
        compiled(TileGraph(weights, names, settings).build()),
        settings,
        kept,
        checkpoint.f32(newline) if settings.tiles is not None else None,
    )


def _has_full_tiles(directory: Path, settings: TowerSettings | PatchSettings) -> bool:
    """Return whether the image processor makes images, or tiles, of the size that positions are of.

    Idefics3 and InternVL have positions of other sizes as well.
    """
    if isinstance(settings, PatchSettings) or "shuffle" not in settings.projector:
        return True
    processor, side = open_processor(directory), settings.image_size
    if settings.has_parts:
        size = getattr(processor, "max_image_size", None)
        return size is not None and bool(size["longest_edge"] == side)
    return bool(processor.size["height"] == side == processor.size["width"])


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
