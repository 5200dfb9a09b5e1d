"""Segments by models whose queries have a mask and scores of labels: MaskFormer and its successors.

The results are those of the post-processing of transformers, which enlarges all masks together.
Here masks are enlarged one by one, as those of a large image take gigabytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mindspore_serving.backends.source import error_text
from mindspore_serving.errors import InvalidInputs, StageFailed, StartError
from mindspore_serving.llm.images.reader import run_processor

SUBTASKS = PANOPTIC, INSTANCE, SEMANTIC = ("panoptic", "instance", "semantic")
MAX_PATCHES = 8  # of an image, which are computed together

Size: TypeAlias = tuple[int, int]  # height, width


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits of segments, by default those of the pipeline of transformers.

    `score` is the lowest score, `mask` the lowest probability of a pixel, and `overlap` the share
    of a mask that no other mask takes.
    """

    score: float = 0.9
    mask: float = 0.5
    overlap: float = 0.5


@dataclass(frozen=True, slots=True)
class Segment:
    """Segment of an image: the number of its label, and its score."""

    label: int
    score: float


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Segments of an image; `ids` [height, width] are indices of segments from 1, or 0."""

    ids: "npt.NDArray[np.int32]"
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Masks [n, h, w] with their scores [n] and numbers of labels [n]."""

    masks: Any
    scores: Any
    labels: Any


class QueryMasks:
    """Masks of MaskFormer.

    Args:
        directory: of the model.
        processor: the image processor of transformers.
        config: the model's configuration of transformers.
    """

    subtasks: tuple[str, ...] = SUBTASKS  # the default first
    _is_cut = False  # pixels below the threshold of a mask are in no segment

    def __init__(self, directory: Path, processor: Any, config: Any) -> None:
        self._processor, self._config = processor, config

    def read(self, image: Any, subtask: str) -> dict[str, Any]:
        """Return the inputs of the model for an image.  Raises InvalidInputs."""
        processed = run_processor(self._processor, image)
        return {name: processed[name] for name in ("pixel_values", "pixel_mask")}

    def score_labels(self, outputs: Any, size: Size) -> Any:
        """Return the scores of labels [1, labels, h, w] of an image of `size`, not enlarged."""
        classes, masks = self._tensors(outputs)
        return _score_labels(classes[0], masks[0])[None]

    def segment(
        self, outputs: Any, subtask: str, thresholds: Thresholds, size: Size
    ) -> Segmentation:
        """Return the segments of an image of `size`, for the subtask PANOPTIC or INSTANCE.

        Raises StageFailed: outputs are no finite numbers.
        """
        classes, masks = (tensor[0] for tensor in self._tensors(outputs))
        if not (classes.isfinite().all() and masks.isfinite().all()):
            raise StageFailed("the model gives masks that are no finite numbers")
        masks = self._crop(masks, size)
        if subtask == INSTANCE:
            return self._find_instances(classes, masks, thresholds, size)
        scores, labels = classes.max(-1)
        is_kept = labels.ne(classes.shape[-1] - 1) & (scores > thresholds.score)
        kept = Candidates(self._weights(masks[is_kept]), scores[is_kept], labels[is_kept])
        return self._share_pixels(kept, thresholds, size)

    def _tensors(self, outputs: Any) -> tuple[Any, Any]:
        """Return probabilities [n, queries, labels and none], and masks as logits."""
        return outputs.class_queries_logits.softmax(-1), outputs.masks_queries_logits

    def _crop(self, masks: Any, size: Size) -> Any:
        """Return the masks without the padding of an image of `size`."""
        return masks

    def _weights(self, masks: Any) -> Any:
        return masks.sigmoid()

    def _find_instances(
        self, classes: Any, masks: Any, thresholds: Thresholds, size: Size
    ) -> Segmentation:
        pairs = _likeliest_pairs(classes, masks)
        return _stack(zip(pairs.masks, pairs.scores, pairs.labels, strict=True), thresholds, size)

    def _share_pixels(
        self, candidates: Candidates, thresholds: Thresholds, size: Size
    ) -> Segmentation:
        """Give each pixel to the candidate with the highest weight there."""
        import torch

        device = candidates.scores.device
        highest = torch.full(size, -torch.inf, device=device)
        owners = torch.zeros(size, dtype=torch.int32, device=device)
        is_inside = torch.ones(size, dtype=torch.bool, device=device)
        areas: list[int] = []
        for index, (mask, score) in enumerate(
            zip(candidates.masks, candidates.scores, strict=True)
        ):
            weights, is_in_mask = self._enlarge(mask, score, thresholds.mask, size)
            areas.append(int(is_in_mask.sum()))
            is_higher = weights > highest
            owners.masked_fill_(is_higher, index)
            highest = torch.where(is_higher, weights, highest)
            if self._is_cut:
                is_inside = torch.where(is_higher, is_in_mask, is_inside)
        return _keep_whole(
            candidates, owners.cpu().numpy(), is_inside.cpu().numpy(), areas, thresholds.overlap
        )

    def _enlarge(self, mask: Any, score: Any, threshold: float, size: Size) -> tuple[Any, Any]:
        """Return the weights of a mask in the image's size, and where the mask is."""
        weights = _resize(mask, size) * score
        return weights, weights >= threshold


class Mask2FormerMasks(QueryMasks):
    """Masks of Mask2Former, which are resized to a square first."""

    def _tensors(self, outputs: Any) -> tuple[Any, Any]:
        classes, masks = super()._tensors(outputs)
        return classes, _resize_all(masks, (384, 384))


class TaskTokenMasks(QueryMasks):
    """Masks of OneFormer, which reads the name of the subtask beside the image."""

    def __init__(self, directory: Path, processor: Any, config: Any) -> None:
        super().__init__(directory, processor, config)
        import transformers

        texts = [f"the task is {subtask}" for subtask in SUBTASKS]
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
            rows = tokenizer(texts, truncation=True, max_length=config.task_seq_len)["input_ids"]
        except Exception as error:  # the library has no error classes of its own
            raise StartError(f"{directory} has no usable tokenizer: {error_text(error)}") from error
        if len(set(map(tuple, rows))) < len(texts):  # the library makes an empty one without files
            raise StartError(
                f"{directory} has no tokenizer for {texts[0]!r}, which the model reads"
            )
        self._tokens = np.zeros((len(rows), config.task_seq_len), np.int64)
        for tokens, row in zip(self._tokens, rows, strict=True):
            tokens[: len(row)] = row

    def read(self, image: Any, subtask: str) -> dict[str, Any]:
        tokens = self._tokens[SUBTASKS.index(subtask)]
        return {**super().read(image, subtask), "task_inputs": tokens[None]}

    def _find_instances(
        self, classes: Any, masks: Any, thresholds: Thresholds, size: Size
    ) -> Segmentation:
        pairs = _likeliest_pairs(classes, masks)
        is_kept = pairs.scores > thresholds.score
        kept = Candidates(pairs.masks[is_kept], pairs.scores[is_kept], pairs.labels[is_kept])
        return self._share_pixels(kept, thresholds, size)

    def _enlarge(self, mask: Any, score: Any, threshold: float, size: Size) -> tuple[Any, Any]:
        weights = _resize(mask, size, antialias=True) * score
        return weights, weights >= threshold


class EomtMasks(QueryMasks):
    """Masks of EoMT, in the size of the processed image.

    A processor that splits images is one of a model for semantic segmentation.
    """

    _is_cut = True

    def __init__(self, directory: Path, processor: Any, config: Any) -> None:
        super().__init__(directory, processor, config)
        self._short, self._long = processor.size["shortest_edge"], processor.size["longest_edge"]
        self._outer_size = (self._short, self._long or self._short)
        if processor.do_split_image:
            self.subtasks = (SEMANTIC,)

    def read(self, image: Any, subtask: str) -> dict[str, Any]:
        processed = run_processor(self._processor, image)
        pixels, offsets = processed["pixel_values"], processed.get("patch_offsets")
        if len(pixels) > MAX_PATCHES:
            raise InvalidInputs(
                f"image is split into {len(pixels)} patches along its long side, expected at most "
                f"{MAX_PATCHES}; send parts of it"
            )
        inputs = {"pixel_values": pixels}
        return {**inputs, "patch_offsets": np.stack(offsets)} if offsets else inputs

    def score_labels(self, outputs: Any, size: Size) -> Any:
        if outputs.patch_offsets is None:
            return super().score_labels(outputs, size)
        import torch

        classes, masks = outputs.class_queries_logits.softmax(-1), outputs.masks_queries_logits
        sums = torch.zeros((classes.shape[-1] - 1, *self._inner_size(size)), device=masks.device)
        counts = torch.zeros(sums.shape[1:], device=masks.device)
        for index, (_, start, end) in enumerate(outputs.patch_offsets.tolist()):
            rows, columns = slice(None), slice(start, end)
            if size[0] > size[1]:
                rows, columns = columns, rows
            mask = _resize_all(masks[index : index + 1], self._outer_size)[0]
            sums[:, rows, columns] += _score_labels(classes[index], mask)
            counts[rows, columns] += 1
        return sums.div_(counts.clamp(min=1))[None]

    def _tensors(self, outputs: Any) -> tuple[Any, Any]:
        classes, masks = super()._tensors(outputs)
        return classes, _resize_all(masks, self._outer_size)

    def _crop(self, masks: Any, size: Size) -> Any:
        height, width = self._inner_size(size)
        return masks[:, :height, :width]

    def _inner_size(self, size: Size) -> Size:
        """Return the size of a processed image without its padding."""
        from transformers.image_transforms import get_size_with_aspect_ratio

        height, width = get_size_with_aspect_ratio(size, self._short, self._long)
        return height, width

    def _weights(self, masks: Any) -> Any:
        return masks

    def _find_instances(
        self, classes: Any, masks: Any, thresholds: Thresholds, size: Size
    ) -> Segmentation:
        scores, labels = classes[:, :-1].max(-1)
        is_kept = scores >= thresholds.score  # the score of a segment is lower
        kept = zip(masks[is_kept], scores[is_kept], labels[is_kept], strict=True)
        enlarged = ((_resize(mask, size), score, label) for mask, score, label in kept)
        return _stack(enlarged, thresholds, size)

    def _enlarge(self, mask: Any, score: Any, threshold: float, size: Size) -> tuple[Any, Any]:
        probabilities = _resize(mask, size).sigmoid()
        return probabilities * score, probabilities >= threshold


FAMILIES = {  # by model_type
    "maskformer": QueryMasks,
    "mask2former": Mask2FormerMasks,
    "oneformer": TaskTokenMasks,
    "eomt": EomtMasks,
    "eomt_dinov3": EomtMasks,
}


def _score_labels(classes: Any, masks: Any) -> Any:
    """Return the scores of labels [labels, h, w] of probabilities of queries, and their masks."""
    import torch

    return torch.einsum("qc,qhw->chw", classes[:, :-1], masks.sigmoid())


def _likeliest_pairs(classes: Any, masks: Any) -> Candidates:
    """Return as many pairs of a query and a label as there are queries, the likeliest."""
    scores, indices = classes[:, :-1].flatten().topk(len(masks), sorted=False)
    num_labels = classes.shape[-1] - 1
    return Candidates(masks[indices // num_labels], scores, indices % num_labels)


def _stack(
    candidates: Iterable[tuple[Any, Any, Any]], thresholds: Thresholds, size: Size
) -> Segmentation:
    """Return segments of masks (logits), scores and labels; a later mask covers earlier ones."""
    import torch

    ids = np.zeros(size, np.int32)
    segments: list[Segment] = []
    for mask, score, label in candidates:
        inside = (mask > 0).float()
        quality = (mask.sigmoid() * inside).sum() / (inside.sum() + 1e-6)
        total = float(score * quality)
        if total < thresholds.score:
            continue
        enlarged = torch.nn.functional.interpolate(inside[None, None], size=size, mode="nearest")
        is_inside = enlarged[0, 0].bool().cpu().numpy()
        if is_inside.any():
            segments.append(Segment(int(label), total))
            ids[is_inside] = len(segments)
    return Segmentation(ids, segments)


def _keep_whole(
    candidates: Candidates,
    owners: "npt.NDArray[np.int32]",
    is_inside: "npt.NDArray[np.bool_]",
    areas: Sequence[int],
    overlap: float,
) -> Segmentation:
    """Return the segments of candidates that have more than the share `overlap` of their area.

    `owners` [height, width] are indices of candidates; pixels outside `is_inside` have no segment.
    """
    segments: list[Segment] = []
    if not areas:
        return Segmentation(np.zeros(owners.shape, np.int32), segments)
    counts = np.bincount(owners.reshape(-1), minlength=len(areas))
    counts_inside = np.bincount(owners[is_inside], minlength=len(areas))
    table = np.zeros(len(areas), np.int32)
    for index, area in enumerate(areas):
        is_kept = area and counts_inside[index]
        # The ratio is a number of 32 bits in transformers, too.
        if is_kept and float(np.float32(counts[index]) / np.float32(area)) > overlap:
            label, score = candidates.labels[index], candidates.scores[index]
            segments.append(Segment(int(label), float(score)))
            table[index] = len(segments)
    return Segmentation(np.where(is_inside, table[owners], 0), segments)


def _resize(mask: Any, size: Size, *, antialias: bool = False) -> Any:
    return _resize_all(mask[None, None], size, antialias=antialias)[0, 0]


def _resize_all(masks: Any, size: Size, *, antialias: bool = False) -> Any:
    """Return masks [n, queries, h, w] in another size."""
    import torch

    return torch.nn.functional.interpolate(
        masks.float(), size=size, mode="bilinear", align_corners=False, antialias=antialias
    )
