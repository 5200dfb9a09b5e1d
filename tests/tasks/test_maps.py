"""Tasks with maps of images as answers, against transformers' pipelines; and what is refused."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

import torch

from mindspore_serving.core.tasks import DEPTH, SEGMENTATION, TaskSpec, task_of
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.tasks import map_task
from mindspore_serving.tasks.opening import open_task
from tests.llm import dual_towers
from tests.tasks.maps import build, levels, pipeline, random_image

pytestmark = pytest.mark.torch

LABELS = ["sky", "road", "Tür", "sea", "tree"]
SIZES = ((50, 40), (90, 34))
BACKBONE = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
            "image_size": 32, "patch_size": 8}  # fmt: skip
DPT = {
    **BACKBONE, "intermediate_size": 48, "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "is_hybrid": False,
    "semantic_loss_ignore_index": 255,
}  # fmt: skip
SEGFORMER = {
    "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
    "decoder_hidden_size": 16,
}  # fmt: skip
ANYTHING = {
    "backbone_config": {**BACKBONE, "model_type": "dinov2", "reshape_hidden_states": False,
                        "out_indices": [1, 2, 3, 4], "apply_layernorm": True},
    "patch_size": 8, "reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 8, 8, 8],
    "fusion_hidden_size": 8, "head_hidden_size": 8,
}  # fmt: skip
GLPN = {
    "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
    "decoder_hidden_size": 16,
}  # fmt: skip
BEIT = {**BACKBONE, "intermediate_size": 48, "out_indices": [1, 2, 3, 4],
        "use_auxiliary_head": False, "use_mask_token": False}  # fmt: skip
UPERNET = {
    "backbone_config": {"model_type": "convnext", "hidden_sizes": [8, 8, 16, 16],
                        "depths": [1, 1, 1, 1], "out_features": ["stage1", "stage2", "stage3",
                                                                 "stage4"]},
    "hidden_size": 16, "use_auxiliary_head": False,
}  # fmt: skip
# name -> (class, its configuration, its image processor)
DEPTHS = {
    "dpt": ("DPTForDepthEstimation", DPT, "DPT"),
    "glpn": ("GLPNForDepthEstimation", GLPN, "GLPN"),
    "depth-anything": ("DepthAnythingForDepthEstimation", ANYTHING, "DPT"),
}
SEGMENTERS = {
    "dpt": ("DPTForSemanticSegmentation", DPT, "DPT"),
    "beit": ("BeitForSemanticSegmentation", BEIT, "Beit"),
    "upernet": ("UperNetForSemanticSegmentation", UPERNET, "Segformer"),
    "segformer": ("SegformerForSemanticSegmentation", SEGFORMER, "Segformer"),
}


def build_segmenter(directory, name):
    return build(directory, SEGMENTERS[name], id2label=dict(enumerate(LABELS)))


@pytest.mark.parametrize("name", DEPTHS)
def test_depths_are_those_of_the_pipeline(name, tmp_path):
    task = open_task(TaskSpec(str(build(tmp_path / name, DEPTHS[name])), DEPTH))
    reference = pipeline(DEPTH, tmp_path / name, "AutoModelForDepthEstimation")
    images = [random_image(seed, size) for seed, size in enumerate(SIZES)]
    answers = task.run([(dual_towers.file_of(image),) for image in images])
    for image, (file, lowest, highest) in zip(images, answers, strict=True):
        expected = reference(image)
        depth = expected["predicted_depth"].numpy()
        scale = np.abs(depth).max()
        assert highest > lowest
        assert abs(lowest - depth.min()) <= 1e-5 * scale
        assert abs(highest - depth.max()) <= 1e-5 * scale
        grey, grey_expected = levels(file).astype(int), np.asarray(expected["depth"]).astype(int)
        assert grey.shape == (image.height, image.width) == grey_expected.shape
        assert np.abs(grey - grey_expected).max() <= 1, "the cast may round another way"
        assert (grey == grey_expected).mean() > 0.99
    task.close()


@pytest.mark.parametrize("name", SEGMENTERS)
def test_segments_are_those_of_the_pipeline(name, tmp_path):
    task = open_task(TaskSpec(str(build_segmenter(tmp_path / name, name)), SEGMENTATION))
    reference = pipeline(SEGMENTATION, tmp_path / name, "AutoModelForSemanticSegmentation")
    seen = set()
    for seed, size in enumerate(SIZES):
        image = random_image(seed, size)
        ((file, text),) = task.run([(dual_towers.file_of(image),)])
        numbers, segments = levels(file), json.loads(text)
        expected = reference(image)
        assert [row["label"] for row in segments] == [row["label"] for row in expected]
        for row, segment in zip(expected, segments, strict=True):
            mask = numbers == segment["id"]
            assert (mask == (np.asarray(row["mask"]) == 255)).all()
            assert mask.sum() == segment["pixels"]
        seen |= {segment["label"] for segment in segments}
    assert len(seen) > 1
    task.close()


@pytest.mark.parametrize("count", [5, 300])
def test_pixels_have_the_likeliest_label_of_many(count):
    logits = torch.randn(1, count, 6, 7, generator=torch.Generator().manual_seed(count))
    size = (33, 18)
    enlarged = torch.nn.functional.interpolate(logits, size, mode="bilinear", align_corners=False)
    numbers = map_task._likeliest(logits, size)
    assert (numbers == enlarged[0].argmax(0).numpy()).all()
    assert numbers.dtype == (np.uint8 if count == 5 else np.uint16)
    assert (levels(map_task._to_png(numbers)) == numbers).all()


def test_wrong_and_large_images_fail_alone(tmp_path, monkeypatch):
    task = open_task(TaskSpec(str(build_segmenter(tmp_path / "m", "segformer")), SEGMENTATION))
    monkeypatch.setattr(map_task, "MAX_PIXELS", 2000)
    rows = [b"%PDF", np.zeros((1, 101, 3), np.uint8), np.zeros((41, 50, 3), np.uint8)]
    messages = ["is no JPEG", "101 x 1 pixels, .* 100 times", "50 x 41 pixels, .* 2,000"]
    good, *wrong = task.run([(np.zeros((40, 50, 3), np.uint8),), *((row,) for row in rows)])
    assert levels(good[0]).shape == (40, 50)
    for error, message in zip(wrong, messages, strict=True):
        with pytest.raises(InvalidInputs, match=message):
            raise error
    task.close()


def test_heads_of_maps_have_their_tasks(tmp_path):
    assert task_of("ZoeDepthForDepthEstimation") == DEPTH
    assert task_of("UperNetForSemanticSegmentation") == SEGMENTATION
    assert task_of("OneFormerForUniversalSegmentation") == SEGMENTATION
    assert task_of("RfDetrForInstanceSegmentation") == ""
    directory = build_segmenter(tmp_path / "m", "segformer")
    with pytest.raises(StartError, match="expected transformers for images"):
        open_task(TaskSpec(str(directory), SEGMENTATION, "openvino"))
