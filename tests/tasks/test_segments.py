"""Universal segmentation, against transformers; and what is refused."""

import importlib.util
import inspect
import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("scipy")
pytest.importorskip("PIL")

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from mindspore_serving.core.tasks import SEGMENTATION, TaskSpec
from mindspore_serving.errors import InvalidInputs, StageFailed, StartError
from mindspore_serving.tasks.opening import open_task
from mindspore_serving.tasks.query_masks import SUBTASKS
from tests.llm import dual_towers
from tests.tasks.maps import build, levels, pipeline, random_image

pytestmark = pytest.mark.torch

LABELS = ["sky", "road", "Tür", "sea", "tree"]
SIZES = ((90, 34), (61, 77))

LIMITS = {"threshold": 0.2, "mask_threshold": 0.4, "overlap_mask_area_threshold": 0.3}
SWIN = {"model_type": "swin", "image_size": 64, "embed_dim": 8, "depths": [1, 1, 1, 1],
        "num_heads": [1, 1, 2, 2], "window_size": 2,
        "out_features": ["stage1", "stage2", "stage3", "stage4"]}  # fmt: skip
DETR = {"model_type": "detr", "d_model": 32, "num_queries": 9, "encoder_layers": 1,
        "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}  # fmt: skip
MASKS = {"backbone_config": SWIN, "hidden_dim": 32, "num_queries": 9, "num_attention_heads": 2,
         "encoder_feedforward_dim": 32, "dim_feedforward": 32, "encoder_layers": 1,
         "decoder_layers": 2}  # fmt: skip
ONEFORMER = {**MASKS, "conv_dim": 32, "mask_dim": 32, "task_seq_len": 12, "text_encoder_width": 32,
       "text_encoder_num_layers": 1, "query_dec_layers": 1}  # fmt: skip
EOMT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32,
        "patch_size": 4, "num_blocks": 1, "num_queries": 9, "num_upscale_blocks": 1,
        "num_register_tokens": 2}  # fmt: skip
UNIVERSAL = {
    "maskformer": (
        "MaskFormerForInstanceSegmentation",
        {"backbone_config": SWIN, "decoder_config": DETR, "fpn_feature_size": 32,
         "mask_feature_size": 32},
        "MaskFormer",
    ),
    "mask2former": (
        "Mask2FormerForUniversalSegmentation",
        {**MASKS, "feature_size": 32, "mask_feature_size": 32},
        "Mask2Former",
    ),
    "oneformer": ("OneFormerForUniversalSegmentation", ONEFORMER, "OneFormer"),
    "eomt": ("EomtForUniversalSegmentation", EOMT, "Eomt"),
    "eomt-dinov3": (
        "EomtDinov3ForUniversalSegmentation", {**EOMT, "intermediate_size": 64}, "Eomt"
    ),
}  # fmt: skip


def build_universal(directory, name, **entries):
    build(directory, UNIVERSAL[name], id2label=dict(enumerate(LABELS)), **entries)
    if name == "oneformer":
        words = ["[UNK]", "the", "task", "is", *SUBTASKS, "[PAD]"]
        inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
        inner.pre_tokenizer = pre_tokenizers.Whitespace()
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="[PAD]"
        ).save_pretrained(directory)
        model = transformers.OneFormerForUniversalSegmentation.from_pretrained(directory)
        model.model.transformer_module.queries_embedder.weight.data *= 10  # else alike
        model.save_pretrained(directory)
        file = directory / "preprocessor_config.json"
        labels = {"class_info_file": "coco_panoptic.json"}  # a file that checkpoints lack
        file.write_text(json.dumps({**json.loads(file.read_text()), **labels}))
    return directory


def open_segmenter(directory):
    """Open the task on one thread, as tiny models gain nothing by more."""
    return open_task(TaskSpec(str(directory), SEGMENTATION, options={"num_threads": 1}))


@pytest.fixture
def oneformer_resizes(monkeypatch):
    """Let the processor of OneFormer resize masks where torchvision is not installed."""
    from transformers.models.oneformer import image_processing_pil_oneformer as module

    if not hasattr(module, "tvF"):

        def resize(masks, size, interpolation):
            return torch.nn.functional.interpolate(masks, size, mode="bilinear", antialias=True)

        modes = SimpleNamespace(BILINEAR="bilinear")
        functions = SimpleNamespace(resize=resize, InterpolationMode=modes)
        monkeypatch.setattr(module, "tvF", functions, raising=False)


class Reference:
    """The model and the post-processing of transformers."""

    def __init__(self, directory):
        self.processor = transformers.AutoImageProcessor.from_pretrained(
            directory, backend="pil", class_info_file=""
        )
        self.read = self.processor
        automatic = transformers.AutoModelForUniversalSegmentation
        self.model = automatic.from_pretrained(directory, attn_implementation="eager").eval()
        if self.model.config.model_type == "oneformer":
            tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
            self.read = transformers.OneFormerProcessor(
                self.processor, tokenizer, task_seq_length=ONEFORMER["task_seq_len"]
            )

    def segment(self, image, subtask, **limits):
        """Return the map of ids, and (label, score, id) of each segment."""
        tasks = [[subtask]] if self.read is not self.processor else []
        with torch.no_grad():
            outputs = self.model(**self.read([image], *tasks, return_tensors="pt"))
        function = getattr(self.processor, f"post_process_{subtask}_segmentation")
        accepted = inspect.signature(function).parameters
        limits = {name: value for name, value in limits.items() if name in accepted}
        (result,) = function(outputs, target_sizes=[(image.height, image.width)], **limits)
        if subtask == "semantic":
            numbers = result.numpy()
            return numbers, [(LABELS[label], None, label) for label in np.unique(numbers)]
        rows = result["segments_info"]
        return result["segmentation"].numpy(), [
            (LABELS[row["label_id"]], row["score"], row["id"]) for row in rows
        ]


def assert_segments(answer, numbers, expected):
    ids, segments = levels(answer[0]), json.loads(answer[1])
    assert ids.shape == numbers.shape
    assert [row["label"] for row in segments] == [label for label, _, _ in expected]
    for segment, (_, score, number) in zip(segments, expected, strict=True):
        mask = ids == segment["id"]
        assert (mask == (numbers == number)).all()
        assert mask.sum() == segment["pixels"]
        assert score is None or abs(segment["score"] - score) < 1e-5
    return len(segments)


def row_of(image, subtask="", **limits):
    numbers = [np.array(limits[name], np.float32) if name in limits else "" for name in LIMITS]
    return (dual_towers.file_of(image), subtask, *numbers)


@pytest.mark.parametrize("name", UNIVERSAL)
def test_segments_of_queries_are_those_of_transformers(name, tmp_path, oneformer_resizes):
    directory = build_universal(tmp_path / name, name)
    task, reference = open_segmenter(directory), Reference(directory)
    images = [random_image(seed, size) for seed, size in enumerate((*SIZES, (13, 9)))]
    count = 0
    for subtask in SUBTASKS:
        answers = task.run([row_of(image, subtask, **LIMITS) for image in images])
        for image, answer in zip(images, answers, strict=True):
            count += assert_segments(answer, *reference.segment(image, subtask, **LIMITS))
    assert count > len(SUBTASKS) * len(images)
    task.close()


def build_sure(directory, name, **entries):
    """Write a model whose queries have high scores of labels and clear masks."""
    build_universal(directory, name, **entries)
    model = transformers.AutoModelForUniversalSegmentation.from_pretrained(directory)
    model.class_predictor.weight.data *= 10
    model.class_predictor.bias.data[-1] = -50
    for name, weight in model.named_parameters():
        if "mask_embedder.2" in name:
            weight.data *= 10
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def mask2former(tmp_path_factory):
    return build_sure(tmp_path_factory.mktemp("universal") / "m", "mask2former")


@pytest.fixture(scope="module")
def task(mask2former):
    task = open_segmenter(mask2former)
    yield task
    task.close()


def test_defaults_are_those_of_the_pipeline(task, mask2former):
    reference = pipeline(SEGMENTATION, mask2former, "AutoModelForUniversalSegmentation")
    image = random_image(1, SIZES[1])
    for subtask in ("", "instance"):
        (answer,) = task.run([row_of(image, subtask)])
        expected = reference(image, subtask=subtask or None)
        ids, segments = levels(answer[0]), json.loads(answer[1])
        assert expected
        assert [row["label"] for row in segments] == [row["label"] for row in expected]
        for row, segment in zip(expected, segments, strict=True):
            assert abs(row["score"] - segment["score"]) < 1e-5
            assert ((ids == segment["id"]) == (np.asarray(row["mask"]) == 255)).all()


def test_extreme_thresholds_keep_all_segments_or_none(tmp_path):
    directory = build_sure(
        tmp_path / "many", "maskformer", decoder_config={**DETR, "num_queries": 300}
    )
    task = open_segmenter(directory)
    image = random_image(0, SIZES[0])
    lowest = row_of(image, "instance", **dict.fromkeys(LIMITS, 0.0))
    highest = row_of(image, "panoptic", **dict.fromkeys(LIMITS, 1.0))
    many, none = task.run([lowest, highest])
    segments, ids = json.loads(many[1]), levels(many[0])
    assert [row["id"] for row in segments] == list(range(1, len(segments) + 1))
    assert len(segments) > 256
    assert ids.dtype == np.uint16
    assert sum(row["pixels"] for row in segments) == np.count_nonzero(ids)
    assert json.loads(none[1]) == []
    assert not levels(none[0]).any()
    task.close()


def test_wrong_parameters_of_segments_fail_alone(task):
    image = random_image(0, SIZES[0])
    wrong = {
        "subtask is 'stuff', expected panoptic or instance or semantic": ("stuff",),
        "subtask is 1, expected panoptic": (np.array(1, np.int32),),
        "threshold is nan, expected a number of 0 to 1": ("", np.array(np.nan, np.float32)),
        "mask_threshold is -1.0, expected": ("", "", np.array(-1, np.float32)),
        "overlap_mask_area_threshold is 2, expected": ("", "", "", np.array(2, np.int32)),
        "threshold is '0.5', expected a number": ("", "0.5"),
    }
    rows = [(dual_towers.file_of(image), *inputs) for inputs in wrong.values()]
    good, *outcomes = task.run([row_of(image), *rows])
    assert levels(good[0]).shape == (34, 90)
    for message, outcome in zip(wrong, outcomes, strict=True):
        with pytest.raises(InvalidInputs, match=message):
            raise outcome


def test_masks_that_are_no_numbers_fail(task):
    bias = task._model.class_predictor.bias.data
    before = bias.clone()
    bias.fill_(np.nan)
    (outcome,) = task.run([row_of(random_image(0, SIZES[0]))])
    bias.copy_(before)
    with pytest.raises(StageFailed, match="masks that are no finite numbers"):
        raise outcome


def test_images_in_patches_have_semantic_segments_alone(tmp_path):
    directory = build_universal(tmp_path / "eomt", "eomt")
    size = {"shortest_edge": 32, "longest_edge": None}
    transformers.EomtImageProcessorPil(size=size, do_split_image=True).save_pretrained(directory)
    task, reference = open_segmenter(directory), Reference(directory)
    images = [random_image(seed, size) for seed, size in enumerate(((90, 34), (31, 77), (40, 40)))]
    long, panoptic = row_of(random_image(4, (300, 33))), row_of(images[0], "panoptic")
    *answers, of_long, of_panoptic = task.run([*map(row_of, images), long, panoptic])
    for image, answer in zip(images, answers, strict=True):
        assert assert_segments(answer, *reference.segment(image, "semantic")) > 1
    with pytest.raises(InvalidInputs, match="split into 10 patches .* at most 8"):
        raise of_long
    with pytest.raises(InvalidInputs, match="subtask is 'panoptic', expected semantic"):
        raise of_panoptic
    task.close()


def test_segmenters_that_lack_a_library_or_a_file_are_refused(tmp_path, monkeypatch):
    directory = build_universal(tmp_path / "m", "maskformer")
    config = json.loads((directory / "config.json").read_text())
    timm = {"model_type": "timm_backbone", "backbone": "resnet18"}
    (directory / "config.json").write_text(json.dumps({**config, "backbone_config": timm}))
    if importlib.util.find_spec("timm") is None:
        with pytest.raises(StartError, match="TimmBackbone requires the timm library"):
            open_segmenter(directory)
    (directory / "config.json").write_text(json.dumps(config))
    requires = transformers.utils.import_utils.BACKENDS_MAPPING
    message = requires["scipy"][1]
    monkeypatch.setitem(requires, "scipy", (lambda: False, message))
    with pytest.raises(StartError, match="requires the scipy library"):
        open_segmenter(directory)
    monkeypatch.undo()
    directory = build_universal(tmp_path / "o", "oneformer")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (directory / file).unlink()
    with pytest.raises(StartError, match="has no tokenizer for 'the task is panoptic'"):
        open_segmenter(directory)
