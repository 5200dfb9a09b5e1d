"""Tiny random models that hear, with processor, tokenizer and chat template, made by transformers;
and what transformers computes with them.
"""

import base64
import inspect
import io
import json
import wave
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer

from mindspore_serving.core.llm_messages import Generate
from mindspore_serving.llm.loader import OpenedModel
from tests.llm import seeing
from tests.llm.architectures import GEMMA3N

Sound: TypeAlias = np.ndarray[Any, np.dtype[np.int16]]
Part: TypeAlias = str | Image.Image | Sound

RATE = 16_000
SOUND = seeing.MARKS.index("[IMG_BREAK]")  # the token that stands for a vector of a sound
_MARK = f"<img>{seeing.MARKS[SOUND]}</img>"
_IMAGE = "<start_of_image><image><end_of_image>"
TEMPLATE = seeing.TEMPLATE.replace(
    "{% else %}", "{% elif part['type'] == 'audio' %}" + _MARK + "{% else %}"
).replace("<image>", _IMAGE)
ENCODER = {
    "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "num_mel_bins": 80, "initializer_range": 0.2,
}  # fmt: skip
OMNI = {
    "vision_config": seeing.QWEN2_5_VL["vision_config"],
    "audio_config": {
        **ENCODER, "n_window": 20, "output_dim": 64, "max_source_positions": 1500,
        "initializer_range": 0.2,
    },
    "image_token_index": seeing.IMAGE, "audio_token_index": SOUND, "video_token_index": 9,
    "vision_start_token_id": 6, "vision_end_token_id": 7, "audio_start_token_id": 10,
    "audio_end_token_id": 11, "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_AUDIO = {
    "audio_config": {**ENCODER, "max_source_positions": 100}, "audio_token_index": SOUND,
}  # fmt: skip
QWEN3_ASR = {
    "audio_config": {
        **ENCODER, "model_type": "qwen3_asr_encoder", "n_window_infer": 100,
        "output_dim": 64, "downsample_hidden_size": 8,
    },
    "audio_token_id": SOUND, "initializer_range": 0.2,
}  # fmt: skip
VOXTRAL = {
    "audio_config": {
        "model_type": "voxtral_encoder", "hidden_size": 32, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_mel_bins": 80,
        "max_source_positions": 100, "initializer_range": 0.2,
    },
    "audio_token_id": SOUND, "initializer_range": 0.2,
}  # fmt: skip
QWEN3_OMNI = {
    "vision_config": seeing.QWEN3_VL["vision_config"],
    "audio_config": {
        **ENCODER, "n_window_infer": 100, "output_dim": 64,
        "downsample_hidden_size": 8, "max_source_positions": 100,
    },
    "image_token_id": seeing.IMAGE, "audio_token_id": SOUND, "video_token_id": 9,
    "vision_start_token_id": 6, "vision_end_token_id": 7, "audio_start_token_id": 10,
    "audio_end_token_id": 11,
}  # fmt: skip
GEMMA4 = {
    **seeing.GEMMA4, "audio_token_id": SOUND, "boa_token_id": 10, "eoa_token_id": 11,
    "audio_config": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "subsampling_conv_channels": [128, 4], "output_proj_dims": 48, "initializer_range": 0.2,
    },
}  # fmt: skip
# Tokens behind those of texts: ends and placeholders of images and of sounds.
OTHER_TOKENS = ["<end_of_picture>", "<picture>", "<end_of_audio>", "<audio>"]
SECONDS = {
    "qwen3-omni": 10,
    "qwen2-audio": 2,
    "voxtral": 2,
    "qwen2.5-omni": 10,
}  # longest sound, as their extractors have it
GEMMA3N_KINDS = ("gemma3n", "gemma3n-sounds")  # "gemma3n" needs timm
KINDS = {  # and their classes
    "gemma3n-sounds": "Gemma3nForConditionalGeneration",
    "gemma4-sounds": "Gemma4ForConditionalGeneration",
    "qwen2-audio": "Qwen2AudioForConditionalGeneration",
    "qwen3-asr": "Qwen3ASRForConditionalGeneration",
    "voxtral": "VoxtralForConditionalGeneration",
    "qwen3-omni": "Qwen3OmniMoeThinkerForConditionalGeneration",
    "qwen2.5-omni": "Qwen2_5OmniThinkerForConditionalGeneration",
}
_MASKS = dict.fromkeys((*GEMMA3N_KINDS, "gemma4-sounds", "qwen3-asr"), "input_features_mask")
SEEING = {
    "gemma3n": "",
    "qwen3-omni": "qwen3-vl",
    "qwen2.5-omni": "qwen2.5-vl",
    "gemma4-sounds": "gemma4-images",
}  # as these do


def build(directory: Path, kind: str) -> Path:
    """The model's directory, below `directory`."""
    target = directory / kind
    target.mkdir(parents=True)
    size = seeing.write_tokenizer(target, _template(kind))
    if kind in GEMMA3N_KINDS:
        tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
        tokenizer.add_special_tokens(OTHER_TOKENS)
        tokenizer.save(str(target / "tokenizer.json"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(kind.encode()))
        model = _MAKERS[kind](size)
    language = getattr(model, "thinker", model)
    for token in (seeing.IMAGE, SOUND):  # answers have none
        language.lm_head.weight.data[token] = 0
    language.lm_head.weight.data[size:] = 0
    model.save_pretrained(target)
    settings = json.loads(extractor(kind).to_json_string())
    if kind in SEEING:
        settings = {**images(kind).to_dict(), **settings}
    (target / "preprocessor_config.json").write_text(json.dumps(settings))
    return target


def _qwen2_audio(size: int) -> Any:
    text = {**seeing.TEXT, "model_type": "qwen2", "vocab_size": size}
    config = transformers.Qwen2AudioConfig(text_config=text, **QWEN2_AUDIO)
    return transformers.Qwen2AudioForConditionalGeneration(config)


def _qwen3_asr(size: int) -> Any:
    text = {**seeing.TEXT, "model_type": "qwen3", "head_dim": 16, "vocab_size": size}
    config = transformers.Qwen3ASRConfig(text_config=text, **QWEN3_ASR)
    return transformers.Qwen3ASRForConditionalGeneration(config)


def _voxtral(size: int) -> Any:
    text = {**seeing.TEXT, "model_type": "llama", "vocab_size": size}
    config = transformers.VoxtralConfig(text_config=text, **VOXTRAL)
    return transformers.VoxtralForConditionalGeneration(config)


def _omni(size: int) -> Any:
    text = {**seeing.TEXT, "rope_parameters": seeing.MROPE, "vocab_size": size}
    config = transformers.Qwen2_5OmniConfig(
        thinker_config={"text_config": {**text, "tie_word_embeddings": False}, **OMNI},
        enable_audio_output=False,
    )
    return transformers.Qwen2_5OmniForConditionalGeneration(config)


class Blind(transformers.PreTrainedModel):  # type: ignore[misc]
    """Vision tower in place of Gemma 3n's, which the library makes by timm."""

    config_class = transformers.Gemma3nVisionConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.stem = torch.nn.Linear(4, 4)
        self.post_init()


def _gemma3n_sounds(size: int) -> Any:
    transformers.AutoModel.register(transformers.Gemma3nVisionConfig, Blind, exist_ok=True)
    return _gemma3n(size, {"hidden_size": 32})


def _gemma3n_images(size: int) -> Any:
    """The published tower with fewer and narrower layers, whose last features are pooled, too."""
    from timm.models._efficientnet_builder import decode_arch_def

    stages = [
        ["er_r1_k3_s2_e2_c8"],
        ["uir_r1_a3_k5_s2_e2_c16", "mqa_r1_k3_h2_v2_s1_d8_c16", "uir_r1_a5_k0_s1_e2_c16"],
        ["uir_r1_a5_k5_s2_e2_c16", "mqa_r1_k3_h2_s1_d8_c16", "uir_r1_a0_k0_s1_e2_c16"],
    ]
    sizes = {"block_args": decode_arch_def(stages), "stem_size": 8, "msfa_output_resolution": 4}
    model = _gemma3n(size, {"hidden_size": 2048, "model_args": deepcopy(sizes)})
    model.config.vision_config.model_args = sizes  # timm puts classes into the others
    for name, weight in model.model.vision_tower.named_parameters():
        if name.endswith("gamma"):  # which begin with 1e-5
            weight.data.normal_(0.5, 0.2)
    return model


def _gemma3n(size: int, vision: dict[str, Any]) -> Any:
    text = {
        **seeing.TEXT, **GEMMA3N, **seeing.LAYER_INPUTS, "head_dim": 16, "vocab_size": size + 6,
        "vocab_size_per_layer_input": size, "activation_sparsity_pattern": [0.6, 0.0, 0.3, 0.0],
    }  # fmt: skip
    config = transformers.Gemma3nConfig(
        text_config=text,
        vision_config={**vision, "vocab_size": 2, "vocab_offset": size},
        vision_soft_tokens_per_image=16,
        audio_config={
            "hidden_size": 32, "vocab_size": 4, "vocab_offset": size + 2,
            "conf_num_hidden_layers": 2, "conf_num_attention_heads": 4,
            "sscp_conv_channel_size": [8, 4], "initializer_range": 0.2,
        },
        audio_soft_tokens_per_image=12, boi_token_id=6, eoi_token_id=size, image_token_id=size + 1,
        boa_token_id=10, eoa_token_id=size + 2, audio_token_id=size + 3,
    )  # fmt: skip
    return transformers.Gemma3nForConditionalGeneration(config)


def _gemma4(size: int) -> Any:
    text = {**seeing.TEXT, **seeing.TEXTS["gemma4-images"], "vocab_size": size}
    config = transformers.Gemma4Config(
        text_config={**text, "model_type": "gemma4_text"}, image_token_id=seeing.IMAGE, **GEMMA4
    )
    return transformers.Gemma4ForConditionalGeneration(config)


def _qwen3_omni(size: int) -> Any:
    text = {**seeing.TEXT, **seeing.TEXTS["qwen3-vl-moe"], "vocab_size": size}
    config = transformers.Qwen3OmniMoeConfig(
        thinker_config={"text_config": text, **QWEN3_OMNI}, enable_audio_output=False
    )
    return transformers.Qwen3OmniMoeForConditionalGeneration(config)


_MAKERS = {
    "qwen3-omni": _qwen3_omni, "qwen2-audio": _qwen2_audio, "qwen2.5-omni": _omni,
    "gemma3n": _gemma3n_images, "gemma3n-sounds": _gemma3n_sounds, "gemma4-sounds": _gemma4,
    "qwen3-asr": _qwen3_asr, "voxtral": _voxtral,
}  # fmt: skip


def _template(kind: str) -> str:
    """The marks around a placeholder are the template's, or those of the processor."""
    if not kind.startswith(("gemma", "voxtral")):
        return TEMPLATE
    has_image_token = kind in ("gemma4-sounds", "voxtral")
    mark, image = (
        (seeing.MARKS[SOUND], "<image>") if has_image_token else (OTHER_TOKENS[3], OTHER_TOKENS[1])
    )
    return TEMPLATE.replace(_MARK, mark).replace(_IMAGE, image)


def extractor(kind: str) -> Any:
    if kind == "gemma4-sounds":
        return transformers.Gemma4AudioFeatureExtractor(feature_size=128)
    if kind in GEMMA3N_KINDS:
        return transformers.Gemma3nAudioFeatureExtractor()
    if kind == "qwen3-asr":
        return transformers.Qwen3ASRFeatureExtractor(feature_size=80)
    return transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS[kind])


def images(kind: str) -> Any:
    """The image processor of a kind."""
    if kind == "gemma3n":
        return transformers.SiglipImageProcessorPil(size={"height": 64, "width": 64})
    return seeing.processor(SEEING[kind])


def sound(seed: int, seconds: float = 0.5) -> Sound:
    """Noise, louder and softer."""
    draw, count = np.random.default_rng(seed), int(seconds * RATE)
    level = 6000 * (1.2 + np.sin(np.arange(count) / 3000))
    return (draw.normal(size=count) * level).clip(-32768, 32767).astype(np.int16)


def wav(samples: Sound) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return buffer.getvalue()


def encoded(samples: Sound, form: str, codec: str) -> bytes:
    """A file of another format."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=form) as container:
        stream = container.add_stream(codec, rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        context = stream.codec_context
        resampler = av.AudioResampler(
            format=context.format, rate=RATE, frame_size=context.frame_size or None
        )
        for piece in (*resampler.resample(frame), *resampler.resample(None), None):
            container.mux(stream.encode(piece))
    return buffer.getvalue()


def part(samples: Sound | bytes, form: str = "wav") -> dict[str, Any]:
    """A sound of a content, as OpenAI has it; of bytes, a file."""
    file = samples if isinstance(samples, bytes) else wav(samples)
    data = base64.b64encode(file).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


def chat(*parts: Part) -> list[dict[str, Any]]:
    """A conversation of one message."""
    content = []
    for each in parts:
        content += [part(each)] if is_sound(each) else seeing.chat(each)[0]["content"]
    return [{"role": "user", "content": content}]


def is_sound(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def media(parts: Sequence[Part]) -> list[Image.Image | Sound]:
    return [each for each in parts if not isinstance(each, str)]


def check(opened: OpenedModel, reference: "Reference", parts: Sequence[Part], params: Any) -> None:
    """Logits and greedy tokens of an opened model are those of transformers."""
    request = Generate(messages=chat(*parts), params=params)
    seeing.check_prompt(opened, reference, request, media(parts))


class Reference:
    """Model of transformers in a directory, which known answers come from."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._kind, self._extractor = kind, extractor(kind)
        self._images = images(kind) if kind in SEEING else None
        config = transformers.AutoConfig.from_pretrained(directory)
        self._model = transformers.AutoModelForMultimodalLM.from_pretrained(
            directory, config=getattr(config, "thinker_config", config), dtype=torch.float32
        ).eval()
        self._accepted = inspect.signature(self._model.forward).parameters

    def logits(self, ids: Sequence[int], media: Sequence[Any]) -> "np.ndarray[Any, Any]":
        with torch.inference_mode():
            return self._model(**self._inputs(ids, media)).logits[0].numpy()

    def greedy(self, ids: Sequence[int], media: Sequence[Any], count: int) -> list[int]:
        with torch.inference_mode():
            tokens = self._model.generate(
                **self._inputs(ids, media), max_new_tokens=count, do_sample=False, eos_token_id=None
            )
        return tokens[0, len(ids) :].tolist()

    def _inputs(self, ids: Sequence[int], media: Sequence[Any]) -> dict[str, Any]:
        tokens = torch.tensor([list(ids)])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        sounds = [each / np.float32(32768) for each in media if is_sound(each)]
        images = [each for each in media if not is_sound(each)]
        if sounds and self._kind == "voxtral":
            inputs["input_features"] = transformers.VoxtralProcessor._retrieve_input_features(
                SimpleNamespace(feature_extractor=self._extractor),
                sounds, self._extractor.nb_max_frames, sampling_rate=RATE, padding=True,
                truncation=False, pad_to_multiple_of=self._extractor.n_samples, return_tensors="pt",
            )  # fmt: skip
        elif sounds:
            padding = {"padding": True} if self._kind == "qwen3-asr" else {}
            heard = self._extractor(
                sounds, sampling_rate=RATE, return_attention_mask=True, return_tensors="pt",
                **padding,
            )  # fmt: skip
            inputs["input_features"] = heard["input_features"]
            name = _MASKS.get(self._kind, "feature_attention_mask")
            inputs[name] = heard["attention_mask" if "attention_mask" in heard else name]
        if images:
            prepared = self._images(images, return_tensors="pt")
            inputs |= {name: x for name, x in prepared.items() if name in self._accepted}
        return inputs
