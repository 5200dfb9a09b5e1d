"""Videos as pairs of frames with positions in time, against transformers: Qwen-VL and GLM-V."""

import json

import numpy as np
import pytest

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import InvalidField, StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.native_video import means_of_pairs, seconds_behind
from mindspore_serving.llm.images.qwen_formats import rope_positions
from mindspore_serving.llm.images.video import VideoFile
from tests.llm import clips, seeing
from tests.llm.images.test_requests import processor

pytest.importorskip("av")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

JOINED = ("qwen2-vl", "qwen2.5-vl")
KINDS = (*JOINED, "qwen3-vl", "qwen3.5", "glm4v")
FRAMES = 5  # the last is twice in its pair
COUNT = 8
OPTIONS = {"dtype": "f32", "kv_cache_dtype": "f32", "kv_cache_memory": 8 << 20}
SMALLEST, LARGEST = 32 * 32, 48 * 48  # pixels of a frame


@pytest.fixture(scope="module")
def clip():
    """A video of 2.5 seconds, not a square, whose frames differ."""
    return clips.video(2.5, size=(96, 64))


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    parent, paths = tmp_path_factory.mktemp("native_video"), {}
    for kind in KINDS:
        paths[kind] = seeing.build(parent, kind)
        count = 1 if kind in JOINED else FRAMES  # else sizes are of all frames together
        size = {"shortest_edge": count * SMALLEST, "longest_edge": count * LARGEST}
        settings = {"size": size}
        (paths[kind] / "video_preprocessor_config.json").write_text(json.dumps(settings))
    return paths


def content(clip, *parts):
    return [{"role": "user", "content": [clips.video_part(clip), *parts]}]


def read_frames(clip):
    with VideoFile(clip, EngineConfig(max_video_frames=FRAMES), float("inf")) as video:
        frames = list(video.frames())
        return frames, video.seconds


def patches(kind, frames):
    """Return the patches of pairs of frames, 32 x 48 pixels each, and their grid."""
    settings = seeing.processor(kind)
    mean, std = (np.reshape(x, (3, 1, 1)) for x in (settings.image_mean, settings.image_std))
    pixels = [np.asarray(frame.resize((48, 32), 3)).transpose(2, 0, 1) / 255 for frame in frames]
    pixels += pixels[-1:] * (len(pixels) % 2)
    x = torch.tensor(np.stack([(frame - mean) / std for frame in pixels])).float()
    x = x.unfold(0, 2, 2).unfold(2, 8, 8).unfold(3, 8, 8)  # pairs, colours, rows, columns, 2, 8, 8
    grid = [x.shape[0], x.shape[2], x.shape[3]]
    x = x.unflatten(2, (-1, 2)).unflatten(4, (-1, 2)).permute(0, 2, 4, 3, 5, 1, 6, 7, 8)
    return x.reshape(np.prod(grid), -1), torch.tensor([grid])


def reference(kind, model, ids, clip):
    """Return the greedy tokens that transformers generates behind `ids`."""
    frames, seconds = read_frames(clip)
    assert len(frames) == FRAMES
    values, grid = patches(kind, [image for _, image in frames])
    tokens = torch.tensor([ids])
    token = seeing.IMAGE if kind == "glm4v" else seeing.VIDEO
    inputs = {
        "input_ids": tokens, "attention_mask": torch.ones_like(tokens),
        "pixel_values_videos": values, "video_grid_thw": grid,
        "mm_token_type_ids": 2 * (tokens == token).int(),
    }  # fmt: skip
    if kind == "qwen2.5-vl":
        inputs["second_per_grid_ts"] = torch.tensor([2 * seconds / FRAMES])
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=COUNT, do_sample=False, eos_token_id=None)
    return output[0, len(ids) :].tolist()


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [*((kind, "openvino") for kind in KINDS), ("qwen2.5-vl", "torch"), ("glm4v", "torch")],
)
def test_answers_about_a_video_are_those_of_transformers(kind, runtime, directories, clip):
    model = seeing.Reference(directories[kind], kind).model
    params = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True)
    with LLM(directories[kind], runtime, **OPTIONS, max_video_frames=FRAMES) as llm:
        messages = content(clip, {"type": "text", "text": "What?"})
        (answer,) = llm.chat(messages, params, use_tqdm=False)
    ids = answer.prompt_token_ids
    token = seeing.IMAGE if kind == "glm4v" else seeing.VIDEO
    assert ids.count(token) == 3 * 2 * 3, "three pairs of 4 x 6 patches"
    assert list(answer.outputs[0].token_ids) == reference(kind, model, ids, clip)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_a_video_are_those_of_training(kind, directories, clip):
    prompt = processor(directories[kind], max_video_frames=4, max_model_len=512).read(
        Generate(
            messages=content(clip, seeing.part(seeing.image(1)), {"type": "text", "text": "?"})
        )
    )
    with VideoFile(clip, EngineConfig(max_video_frames=4), float("inf")) as video:
        times = [at for at, _ in video.frames()]
    video_token = "<image>" if kind == "glm4v" else "<global-img>"
    picture = f"<start_of_image>{prompt.images[-1].text}<end_of_image>?"
    pieces = [f"<start_of_image>{video_token * x.count}<end_of_image>" for x in prompt.images[:-1]]
    if kind in JOINED:
        (text,) = pieces
    elif kind == "glm4v":
        seconds = [int(times[0]), int(times[2])]
        first, second = pieces
        text = f"<|begin_of_video|>{first}{seconds[0]}{second}{seconds[1]}<|end_of_video|>"
    else:
        means = [(times[0] + times[1]) / 2, (times[2] + times[3]) / 2]
        text = "".join(
            f"<{mean:.1f} seconds>{piece}" for mean, piece in zip(means, pieces, strict=True)
        )
    assert prompt.text.startswith(f"user:{text}{picture}")
    assert len({image.digest for image in prompt.images}) == len(prompt.images)


def test_times_between_frames_are_those_of_transformers():
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    indices, rate = [0, 7, 14, 22], 10.0
    times = [index / rate for index in indices]
    means = Qwen3VLProcessor._calculate_timestamps(None, indices, rate)
    assert means_of_pairs(times) == [*(f"<{mean:.1f} seconds>" for mean in means), ""]
    assert seconds_behind(times) == ["<|begin_of_video|>", "0", "1<|end_of_video|>"]


def test_positions_in_time_are_those_of_transformers(directories):
    model = seeing.Reference(directories["qwen2.5-vl"], "qwen2.5-vl").model.model
    draw = np.random.default_rng(5)
    for _ in range(20):
        pairs, height, width = map(int, draw.integers(1, 6, 3))
        seconds = np.float32(draw.uniform(0.1, 3))
        count = pairs * height * width
        kinds = torch.tensor([[0, 0, *[2] * count, 0, 0, *[1] * 6, 0]])
        positions, offset = model.get_rope_index(
            kinds, kinds, image_grid_thw=torch.tensor([[1, 4, 6]]),
            video_grid_thw=torch.tensor([[pairs, 2 * height, 2 * width]]),
            second_per_grid_ts=torch.tensor([seconds]),
        )  # fmt: skip
        rate = model.config.vision_config.tokens_per_second
        tokens = kinds[0].nonzero()[:, 0].tolist()
        grids = [((pairs, height, width), float(rate * seconds)), ((1, 2, 3), 1.0)]
        computed = rope_positions(kinds.shape[1], tokens, grids)
        assert computed.tolist() == positions[:, 0].T.tolist()
        assert int(computed.max()) + 1 - len(computed) == int(offset)


def test_a_video_with_too_many_tokens_is_refused_before_work(directories, clip, monkeypatch):
    reader = processor(directories["qwen2-vl"], max_video_frames=4, max_model_len=10)
    monkeypatch.setattr(type(reader._media.images._processor), "_preprocess", None)
    with pytest.raises(InvalidField, match="becomes 12 tokens, and the model has 10") as refused:
        reader.read(Generate(messages=content(clip)))
    assert refused.value.field == "messages[0].content[0].video_url"


def test_without_a_token_for_videos_their_frames_are_images(directories, clip, tmp_path):
    for file in directories["qwen2-vl"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, "video_token_id": 100_000}))
    prompt = processor(tmp_path, max_video_frames=2, max_model_len=512).read(
        Generate(messages=content(clip))
    )
    assert [set(image.text.split("<image>")) for image in prompt.images] == [{""}, {""}]


@pytest.mark.parametrize(
    "size", [{"shortest_edge": 100, "longest_edge": 10}, {"longest_edge": "x"}]
)
def test_sizes_of_videos_that_are_no_numbers_are_refused(size, directories, tmp_path):
    for file in directories["qwen3-vl"].iterdir():
        if file.name != "video_preprocessor_config.json":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({"size": size}))
    with pytest.raises(StartError, match="settings of videos with size"):
        processor(tmp_path)
