"""Computation of vision towers as compiled graphs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import ServingError
from mindspore_serving.llm.images.patch_settings import PatchSettings
from mindspore_serving.llm.images.patches import (
    Floats,
    Patches,
    joined_windows,
    positions,
    read_patches,
    rotary_tables,
    windows_of,
)
from mindspore_serving.llm.images.tiling import ordered
from mindspore_serving.llm.images.tower_pass import MAX_BATCH_BYTES, Inputs
from mindspore_serving.llm.images.tower_settings import TowerSettings
from mindspore_serving.llm.step import Vectors

_NAMES = {
    "grid": ("pixel_values", "image_grid_thw"),
    "pixels": ("pixel_values", "image_sizes"),
    "padded": ("pixel_values", "image_position_ids"),
    "slices": ("pixel_values", "target_sizes"),
}


class TileTower:
    """Vision tower for tiles of one size.  Used by one thread.

    `kept` are the arrays of its constants, and `newline` the vector at the end of each row if
    `settings.tiles` orders them.  A tile is an image of `size` x `size` pixels.
    """

    def __init__(
        self, compiled: Any, settings: TowerSettings, kept: list[Any], newline: Floats | None = None
    ) -> None:
        self._request = compiled.create_infer_request()
        self._settings, self._kept, self._newline = settings, kept, newline
        self._size = settings.image_size
        self.names: tuple[str, ...] = ("pixel_values", "pixel_attention_mask")
        if settings.tiles is not None:
            self.names = ("pixel_values", "image_sizes")

    def run(self, images: Sequence[Inputs]) -> Vectors:
        """Return the vectors of images, as `TowerPass`."""
        for image in images:
            self._check(image)
        arrays = [image["pixel_values"].reshape(-1, *self._shape) for image in images]
        tiles = np.concatenate(arrays)
        count = max(1, MAX_BATCH_BYTES // (tiles[0].nbytes or 1))
        vectors = np.concatenate(
            [self._infer(tiles[i : i + count]) for i in range(0, len(tiles), count)]
        )
        if self._newline is None or self._settings.tiles is None:
            return vectors.reshape(-1, vectors.shape[-1])
        parts = np.split(vectors, np.cumsum([len(array) for array in arrays])[:-1])
        return np.concatenate(
            [
                ordered(part, image["image_sizes"][0], self._settings.tiles, self._newline)
                for part, image in zip(parts, images, strict=True)
            ]
        )

    def warm_up(self) -> None:
        """Compute an image, which packs the weights."""
        self._infer(np.zeros((1, *self._shape), np.float32))

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
        return inferred(self._request, {"pixel_values": np.ascontiguousarray(tiles, np.float32)})


class PatchTower:
    """Vision tower for images of any shape.  Used by one thread.

    `kept` are the arrays of its constants, `table` has the vectors of positions.
    """

    def __init__(
        self, compiled: Any, settings: PatchSettings, kept: list[Any], table: Floats | None
    ) -> None:
        self._request = compiled.create_infer_request()
        self._settings, self._kept, self._table = settings, kept, table
        self.names = _NAMES[settings.form]

    def run(self, images: Sequence[Inputs]) -> Vectors:
        """Return the vectors of images, as `TowerPass`.

        Images with as many patches are computed together, whatever their shapes are.
        """
        try:
            read = [part for image in images for part in read_patches(image, self._settings)]
        except (ValueError, KeyError, IndexError) as error:
            raise ServingError(f"an image cannot be computed: {error_text(error)}") from error
        groups: dict[int, list[int]] = {}
        for index, patches in enumerate(read):
            groups.setdefault(patches.height * patches.width, []).append(index)
        vectors: dict[int, Vectors] = {}
        for indices in groups.values():
            together = self._infer([read[index] for index in indices])
            ends = np.cumsum([len(read[index].values) for index in indices])[:-1]
            vectors |= dict(zip(indices, np.split(together, ends), strict=True))
        width = vectors[0].shape[-1]
        return np.concatenate([vectors[index].reshape(-1, width) for index in range(len(read))])

    def warm_up(self) -> None:
        """Compute an image, which packs the weights."""
        settings = self._settings
        # After a first pass of a single patch, the plugin computes every other size wrongly.
        side = settings.merge * max(2, settings.window)
        size = next(iter(self._request.model_inputs)).partial_shape[2].get_length()
        self._infer([Patches(np.zeros((1, side**2, size), np.float32), side, side)])

    def _infer(self, images: Sequence[Patches]) -> Vectors:
        """Return the vectors of frames with as many patches, [frames, count, width]."""
        settings = self._settings
        shapes = [(each.height, each.width) for each in images for _ in each.values]
        inputs = {"patches": np.concatenate([each.values for each in images])}
        if settings.theta:
            tables = [rotary_tables(*shape, settings) for shape in shapes]
            inputs["cos"] = np.stack([cos for cos, _ in tables])
            inputs["sin"] = np.stack([sin for _, sin in tables])
        if self._table is not None:
            added = {shape: positions(self._table, *shape, settings) for shape in set(shapes)}
            inputs["positions"] = np.stack([added[shape] for shape in shapes])
        if settings.window:
            windows = [windows_of(*shape, settings) for shape in shapes]
            inputs |= joined_windows(windows, inputs["patches"].shape[1])
        return inferred(self._request, inputs)


def inferred(request: Any, inputs: Mapping[str, Any]) -> Vectors:
    """Return the output of a graph.  Raises ServingError."""
    try:
        for name, array in inputs.items():
            request.set_tensor(name, ov.Tensor(np.ascontiguousarray(array)))
        request.infer()
    except RuntimeError as error:
        raise ServingError(f"an image cannot be computed: {error_text(error)}") from error
    vectors: Vectors = request.get_output_tensor(0).data
    return vectors.copy()
