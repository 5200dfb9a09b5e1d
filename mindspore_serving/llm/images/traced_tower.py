"""Vision towers of the transformers library, traced to OpenVINO graphs.

For a tower that is made by another library, whose layers only that knows.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from mindspore_serving import log
from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import StartError
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.reader import open_processor
from mindspore_serving.llm.images.torch_tower import image_vectors
from mindspore_serving.llm.images.tower_pass import Inputs
from mindspore_serving.llm.images.tower_passes import inferred
from mindspore_serving.llm.runtimes.openvino.opening import compile_graph
from mindspore_serving.llm.runtimes.openvino.options import options_from
from mindspore_serving.llm.runtimes.openvino.processor import capabilities
from mindspore_serving.llm.step import Vectors

_INPUT = "pixel_values"


class TracedTower:
    """Vision tower for images of one size, which it has from its image processor."""

    names = (_INPUT,)

    def __init__(self, compiled: Any) -> None:
        self._request = compiled.create_infer_request()

    def run(self, images: Sequence[Inputs]) -> Vectors:
        """Return the vectors of images, as `TowerPass`."""
        return inferred(self._request, {_INPUT: np.concatenate([x[_INPUT] for x in images])})


def open_traced_tower(model: Any, directory: Path, config: EngineConfig) -> TracedTower:
    """Trace the vision tower of a model of the library, for images as its processor resizes them.

    Raises StartError.
    """
    import torch

    size = open_processor(directory).size
    shape = 3, size["height"], size["width"]
    try:
        with torch.no_grad():
            exported = torch.export.export(
                image_vectors(model).cpu(), (torch.zeros(2, *shape),),
                dynamic_shapes=({0: torch.export.Dim("images", min=1)},),
            )  # fmt: skip
        graph = ov.convert_model(exported)
        graph.inputs[0].get_tensor().set_names({_INPUT})
        graph.reshape({_INPUT: [-1, *shape]})
    except Exception as error:  # the libraries have no errors of their own
        raise StartError(
            f"the vision tower of {directory} cannot be traced: {error_text(error)}"
        ) from error
    options = options_from(config, capabilities(config.num_threads))
    tower = TracedTower(compile_graph(graph, options.properties(0, is_exact=True)))
    model.vision_tower = None  # the plugin has packed the weights
    log.info("%s: images run on openvino in %s", directory.name, options.precision)
    return tower
