"""Sounds of requests: limits before work, and a clear answer to what cannot be used."""

import json

import pytest
import transformers

from mindspore_serving.errors import InvalidField, InvalidInputs, StartError
from mindspore_serving.llm.chat.template import ChatTemplate
from mindspore_serving.llm.chat.transcription_formats import FORMATS
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.images.media import MediaReader
from mindspore_serving.llm.images.messages import find_media
from mindspore_serving.llm.images.sound_reader import open_sound_reader
from mindspore_serving.llm.processing.image_prompt import ImagePrompt
from mindspore_serving.llm.tokenization.tokenizer import Tokenizer
from tests.llm import clips, listening, seeing
from tests.llm.checkpoint.test_mistral import write_tekken

pytestmark = pytest.mark.torch

FIELD = "messages[0].content[0].input_audio.data"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return listening.build(tmp_path_factory.mktemp("sounds"), "qwen2-audio")


def reader(directory, **options):
    config = EngineConfig(**options)
    return open_sound_reader(directory, Tokenizer.open(directory), config)


def prompt(directory, *parts, **options):
    sounds = reader(directory, **options)
    media = MediaReader(None, EngineConfig(**options), sounds)
    return ImagePrompt(media, listening.chat(*parts))


@pytest.mark.parametrize(
    ("file", "options", "told"),
    [
        (listening.wav(listening.sound(1, 2.01)), {}, "more than 2 seconds, the most that the mod"),
        (listening.wav(listening.sound(1, 1.5)), {"max_audio_seconds": 1.0}, "(max_audio_seconds)"),
        (listening.wav(listening.sound(1)), {"max_file_bytes": 999}, "expected at most 999"),
        (listening.wav(listening.sound(1, 0.02)), {}, "0.020 seconds, which is too short"),
        (clips.video(1), {}, "has no sound, only other streams"),
    ],
)
def test_sounds_that_cannot_be_used_are_refused_by_their_field(directory, file, options, told):
    message = {"role": "user", "content": [listening.part(file)]}
    media = MediaReader(None, EngineConfig(**options), reader(directory, **options))
    with pytest.raises(InvalidField) as refused:
        ImagePrompt(media, [message])
    assert refused.value.field == FIELD
    assert told in str(refused.value)


def test_more_sounds_than_allowed_are_refused_before_any_is_read(directory):
    wrong = [listening.part(b"wrong")] * 3
    media = MediaReader(None, EngineConfig(max_audios=2), reader(directory, max_audios=2))
    with pytest.raises(InvalidField, match="have 3 audios, expected at most 2"):
        ImagePrompt(media, [{"role": "user", "content": wrong}])


def test_a_model_that_does_not_hear_says_so():
    with pytest.raises(InvalidField, match="is a sound, but the model reads no sounds"):
        ImagePrompt(MediaReader(None, EngineConfig()), listening.chat(listening.sound(1)))


def test_an_image_for_a_model_that_only_hears_is_refused(directory):
    with pytest.raises(InvalidField, match="is an image, but the model reads no images"):
        prompt(directory, listening.sound(1), seeing.image(1))


def test_a_sound_has_as_many_tokens_as_vectors(directory):
    heard = prompt(directory, listening.sound(1, 1.0))
    (sound,) = heard.of(heard.messages)
    assert (sound.kind, sound.count) == ("audio", 25)
    assert sound.text == seeing.MARKS[listening.SOUND] * 25


def test_hashes_are_equal_for_equal_sounds_alone(directory):
    digests = []
    for seed in (1, 1, 2):
        heard = prompt(directory, listening.sound(seed))
        digests.append(heard.of(heard.messages)[0].digest)
    assert digests[0] == digests[1] != digests[2]


def test_text_that_stands_for_a_sound_is_refused_beside_sounds(directory):
    mark = seeing.MARKS[listening.SOUND]
    heard = prompt(directory, f"a {mark} and ", listening.sound(1))
    with pytest.raises(InvalidInputs, match=r"1 sounds and 2 times '\[IMG_BREAK\]'"):
        heard.expand(f"a {mark} and {mark}", heard.messages)


def test_sounds_are_recognised_in_both_forms_of_parts():
    parts = [
        listening.part(b"a"),
        {"type": "audio_url", "audio_url": {"url": "data:,b"}},
        {"type": "audio_url", "audio_url": "data:,c", "field": "elsewhere"},
    ]
    sources = find_media([{"role": "user", "content": parts}])
    assert [(source.kind, source.field, source.url) for source in sources] == [
        ("audio", FIELD, "data:;base64,YQ=="),
        ("audio", "messages[0].content[1].audio_url", "data:,b"),
        ("audio", "elsewhere", "data:,c"),
    ]


def test_an_extractor_of_another_rate_is_refused_at_the_start(directory, tmp_path):
    for file in directory.iterdir():
        (tmp_path / file.name).symlink_to(file)
    path = tmp_path / "preprocessor_config.json"
    fields = json.loads(path.read_text()) | {"sampling_rate": 22050}
    path.unlink()
    path.write_text(json.dumps(fields))
    with pytest.raises(StartError, match="sampling_rate 22050, expected 16000"):
        reader(tmp_path)
    path.unlink()
    with pytest.raises(StartError, match=r"has no preprocessor_config\.json, which says how"):
        reader(tmp_path)


def test_a_placeholder_that_the_tokenizer_lacks_is_refused_at_the_start(directory, tmp_path):
    for file in directory.iterdir():
        (tmp_path / file.name).symlink_to(file)
    fields = json.loads((directory / "config.json").read_text()) | {"audio_token_index": 9999}
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(StartError, match="audio token 9999, which the tokenizer lacks"):
        reader(tmp_path)


def test_prompts_of_voxtral_are_those_of_mistral_common(tmp_path):
    """As 1.13.1 of the library has them for a chat and for `encode_transcription`."""
    write_tekken(tmp_path, "v13", default_num_special_tokens=40, default_vocab_size=296)
    content = json.loads((tmp_path / "tekken.json").read_text())
    special = {0: "<unk>", 1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 17: "[SYSTEM_PROMPT]",
               24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]"}  # fmt: skip
    content["special_tokens"] = [{"rank": n, "token_str": text} for n, text in special.items()]
    (tmp_path / "tekken.json").write_text(json.dumps(content))
    config = {"architectures": [listening.KINDS["voxtral"]], "audio_token_id": 24}
    sizes = {"max_source_positions": 1500, "hidden_size": 1280, "intermediate_size": 5120}
    (tmp_path / "config.json").write_text(json.dumps({**config, "audio_config": sizes}))
    transformers.WhisperFeatureExtractor(feature_size=128).save_pretrained(tmp_path)
    tokenizer = Tokenizer.open(tmp_path)
    template = ChatTemplate.open(tmp_path, tokenizer.special_tokens)
    start = FORMATS[listening.KINDS["voxtral"]].start
    for parts, behind, text in [
        ((listening.sound(1, 3.0), "What is said?"), "", "What is said?[/INST]"),
        ((listening.sound(1, 3.0),), start(""), "[/INST][TRANSCRIBE]"),
        ((listening.sound(1, 3.0),), start("en"), "[/INST]lang:en[TRANSCRIBE]"),
    ]:
        heard = prompt(tmp_path, *parts)
        rendered = template.render(heard.messages, media_tokens=heard.tokens)
        whole = heard.expand(rendered, heard.messages) + behind
        assert whole == f"<s>[INST][BEGIN_AUDIO]{'[AUDIO]' * 375}{text}"
        ids = tokenizer.encode(whole, False)
        assert ids[:4] == [1, 3, 25, 24]
        assert ids.count(24) == 375
        assert (ids[-1] == 34) == bool(behind)
