"""Frames of videos: at the right times, limits before work, and a clear error for bad files."""

import struct
import time
from datetime import timedelta

import numpy as np
import pytest

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.errors import InvalidField, InvalidInputs
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images import video
from mindspore_serving.llm.images.frame_texts import plain_times, smolvlm_times
from mindspore_serving.llm.images.video import VideoFile
from tests.llm import clips, seeing
from tests.llm.images.test_requests import processor

pytest.importorskip("av")
pytestmark = pytest.mark.torch

FOREVER = float("inf")
FORMS = [
    ("mp4", "libx264"), ("mov", "mpeg4"), ("webm", "libvpx-vp9"), ("matroska", "libx264"),
    ("avi", "mpeg4"), ("mpegts", "libx264"),
]  # fmt: skip


@pytest.fixture(scope="module")
def clip():
    return clips.video()


def frames(file, deadline=FOREVER, **options):
    with VideoFile(file, EngineConfig(**options), deadline) as opened:
        return [(at, np.asarray(image)) for at, image in opened.frames()]


@pytest.mark.parametrize(("form", "codec"), FORMS)
def test_frames_are_even_in_time_in_each_format(form, codec):
    read = frames(clips.video(8, form, codec), max_video_frames=8)
    assert [at for at, _ in read] == pytest.approx([0.5 + index for index in range(8)], abs=0.06)
    for at, pixels in read:
        assert pixels.shape == (48, 64, 3)
        assert pixels.mean() == pytest.approx(at / 8 * 255, abs=6)


def test_a_live_recording_has_a_length_though_its_header_has_none():
    """As a browser records: no length, which is that of the packets."""
    file = clips.video(4, "webm", "libvpx")
    at = file.index(b"\x44\x89\x88")  # Duration, a double
    unknown = file[:at] + b"\xec\x89" + file[at + 2 :]  # Void, of the same size
    assert [at for at, _ in frames(unknown, max_video_frames=4)] == pytest.approx(
        [0.5, 1.5, 2.5, 3.5], abs=0.06
    )


def test_a_short_video_has_few_frames():
    assert len(frames(clips.video(1))) == 2
    assert len(frames(clips.video(0.1))) == 1


def test_a_recording_of_a_phone_is_upright():
    """The matrix of the track says that the frame is to be turned by a quarter."""
    file = bytearray(clips.video(1, size=(64, 32)))
    at = file.index(b"tkhd") + 4 + 4 + 4 * 5 + 8 + 8  # version and flags, times, layer and volume
    turned = [0, 1 << 16, 0, -(1 << 16) & 0xFFFFFFFF, 0, 0, 0, 0, 1 << 30]
    file[at : at + 36] = np.array(turned, ">u4").tobytes()
    assert frames(bytes(file))[0][1].shape == (64, 32, 3)


class CountingCodec:
    def __init__(self, codec):
        self.count = 0
        self._codec = codec

    def decode(self, packet):
        self.count += packet is not None
        return self._codec.decode(packet)

    def flush_buffers(self):
        self._codec.flush_buffers()


def test_only_packets_before_wanted_frames_are_decoded(clip):
    with VideoFile(clip, EngineConfig(max_video_frames=1), FOREVER) as opened:
        codec = opened._codec = CountingCodec(opened._codec)
        ((at, _),) = opened.frames()
    assert at == pytest.approx(3.0), "the key frame before 4.0, within a quarter of 8 s"
    assert codec.count < 10, "not of all 80 frames"


@pytest.mark.parametrize(
    ("change", "options", "told"),
    [
        (lambda file: file[: len(file) // 2], {}, "is broken or truncated"),
        (lambda file: b"", {}, "is no video of a known format, expected mp4"),
        (lambda file: b"GIF89a" + file, {}, "is no video of a known format"),
        (lambda file: file[:4] + b"ftyp" + b"x" * 1000, {}, "is broken or truncated"),
        (lambda file: file, {"max_video_seconds": 7.0}, "of more than 7 seconds"),
        (lambda file: file, {"max_image_pixels": 3000}, "64 x 48 pixels, expected at most 3,000"),
        (lambda file: clips.sound(), {}, "has no video, only other streams"),
        (lambda file: clips.video(1, rate=300), {}, "has 300 frames per second"),
        (lambda file: clips.video(8, "webm", "libvpx")[:1500], {}, "is truncated: its frames end"),
    ],
)
def test_videos_that_cannot_be_used_are_refused(clip, change, options, told):
    with pytest.raises(InvalidInputs, match=told):
        frames(change(clip), **options)


def test_frames_larger_than_their_header_says_are_refused():
    start, size = b"\x9d\x01\x2a", b"\x40\x00\x30\x00"  # of a key frame of VP8
    file = clips.video(1, "webm", "libvpx")
    assert start + size in file
    with pytest.raises(InvalidInputs, match="is broken or truncated: Invalid argument"):
        frames(file.replace(start + size, start + b"\xff\x3f\xff\x3f"))


def test_a_header_that_claims_hours_is_refused():
    file = bytearray(clips.video(1, "webm", "libvpx"))
    at = file.index(b"\x44\x89\x88") + 3  # Duration, in milliseconds
    file[at : at + 8] = struct.pack(">d", 7_300_000.0)
    with pytest.raises(InvalidInputs, match="of more than 7200 seconds"):
        frames(bytes(file))


def test_decoding_ends_at_its_deadline(clip):
    with pytest.raises(InvalidInputs, match="takes longer to decode than preparation_timeout"):
        frames(clip, deadline=time.monotonic())


def test_texts_around_frames_are_those_that_smolvlm_was_trained_with():
    from transformers.models.smolvlm import processing_smolvlm as theirs

    texts = smolvlm_times([0.5, 61.2], 3700.9)
    length = str(timedelta(seconds=3700))
    intro = theirs.DEFAULT_VIDEO_INTRO.format(frame_count="two", video_duration=length)
    stamps = [theirs.FRAME_TIMESTAMP_MESSAGE.format(timestamp=at) for at in ("00:00", "01:01")]
    assert texts == [intro + stamps[0], stamps[1], theirs.DEFAULT_MEDIA_OUTTRO]
    words = {12: "twelve", 20: "twenty", 21: "twenty-one", 64: "sixty-four"}
    for count, word in words.items():
        assert f"series of {word} frames" in smolvlm_times([0.0] * count, 1)[0]
    assert plain_times([0.5, 61.2], 70) == ["00:00 ", "01:01 ", ""]


@pytest.mark.parametrize("kind", ["llava", "smolvlm"])
def test_a_video_becomes_frames_with_their_times(tmp_path, kind, clip):
    directory = seeing.build(tmp_path, kind)
    content = [
        clips.video_part(clip),
        {"type": "text", "text": "What?"},
        seeing.part(seeing.image(1)),
    ]
    message = {"role": "user", "content": content}
    prompt = processor(directory, max_video_frames=2, max_model_len=1024).read(
        Generate(messages=[message])
    )
    assert len(prompt.images) == 3
    assert len({image.digest for image in prompt.images}) == 3
    first, second = prompt.images[0].text, prompt.images[1].text
    if kind == "llava":
        begin = f"user:00:02 {first}00:06 {second}What?<image>"
    else:
        begin = (
            "user:You are provided the following series of two frames from a 0:00:08 [H:MM:SS] "
            f"video.\n\nFrame from 00:02:{first}\nFrame from 00:06:{second}\n\nWhat?"
        )
        assert "<row_1" not in first  # frames are not cut into tiles
        assert "<row_1" in prompt.images[2].text
    assert prompt.text.startswith(begin)


def test_frames_of_internvl_are_not_cut_into_tiles(tmp_path, clip):
    directory = seeing.build(tmp_path, "internvl")
    content = [clips.video_part(clip), seeing.part(seeing.image(1, 120, 40))]
    prompt = processor(directory, max_video_frames=2, max_model_len=1024).read(
        Generate(messages=[{"role": "user", "content": content}])
    )
    first, second, picture = (image.count for image in prompt.images)
    assert first == second < picture


def test_frames_of_smolvlm_are_computed_as_transformers_computes_them(tmp_path, clip):
    """Its processor resizes frames as it does images that it does not cut into tiles."""
    directory = seeing.build(tmp_path, "smolvlm")
    reference = seeing.Reference(directory, "smolvlm")
    reference._processor.do_image_splitting = False
    with VideoFile(clip, EngineConfig(max_video_frames=4), FOREVER) as opened:
        images = [image for _, image in opened.frames()]
    message = {"role": "user", "content": [clips.video_part(clip)]}
    options = {"dtype": "f32", "kv_cache_memory": 8 << 20, "max_video_frames": 4}
    with LLM(directory, **options) as llm:
        params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
        (answer,) = llm.chat([message], params, use_tqdm=False)
    ids = answer.prompt_token_ids
    assert ids.count(seeing.IMAGE) == 4 * 4, "a frame has 4 vectors"
    assert list(answer.outputs[0].token_ids) == reference.greedy(ids, images, 8)


def test_more_videos_than_allowed_are_refused_by_their_field(tmp_path):
    directory = seeing.build(tmp_path, "llava")
    message = {"role": "user", "content": [clips.video_part(b"")] * 2}
    with pytest.raises(InvalidField, match="messages have 2 videos, expected at most 1"):
        processor(directory).read(Generate(messages=[message]))
    message = {"role": "user", "content": [clips.video_part(b"a video")]}
    with pytest.raises(InvalidField, match="is no video of a known format") as refused:
        processor(directory).read(Generate(messages=[message]))
    assert refused.value.field == "messages[0].content[0].video_url"
    with pytest.raises(InvalidField, match="has 7 bytes, expected at most 3"):
        processor(directory, max_file_bytes=3).read(Generate(messages=[message]))


def test_formats_of_text_are_no_videos():
    """Formats that name other files are not tried, whatever the name of the file."""
    playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"
    for file in (playlist, b"ffconcat version 1.0\nfile /etc/passwd\n"):
        assert video._format_of(file) == ""
