"""The runtime "auto": combined for quantised GGUF files, and each reason against it."""

import json
import platform

import pytest

pytest.importorskip("gguf")
pytest.importorskip("llvmlite")
pytest.importorskip("openvino")

from mindspore_serving import log
from mindspore_serving.errors import StartError
from mindspore_serving.llm import LLM, SamplingParams
from mindspore_serving.llm.catalog import AUTO
from mindspore_serving.llm.config import EngineConfig
from mindspore_serving.llm.loader import open_ours
from mindspore_serving.llm.runtimes import default
from mindspore_serving.llm.runtimes.default import choose_runtime, reason_against
from mindspore_serving.llm.runtimes.native.kernels import compiler
from mindspore_serving.llm.runtimes.native.kernels.compiler import VARIABLE
from tests.llm import gguf_files

CONFIG = EngineConfig(kv_cache_memory=2**20, max_num_seqs=2, max_num_batched_tokens=16)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("auto") / "model.gguf"
    merges = {"tokenizer.ggml.merges": ["t 2"], "tokenizer.ggml.pre": "gpt-2"}
    return gguf_files.write_model(path, kind="Q8_0", extra=merges)


def test_a_quantised_gguf_file_is_combined(model):
    assert reason_against(model, EngineConfig()) == ""
    assert choose_runtime(model, AUTO, EngineConfig()) == "combined"
    assert choose_runtime(model, "torch", EngineConfig()) == "torch"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": "f32"}, "dtype is 'f32', but native kernels round activations"),
        ({"kv_cache_dtype": "u8"}, "kv_cache_dtype is 'u8', the combined runtime accepts auto"),
        ({"max_loras": 1}, "runtime 'combined' has no max_loras"),
        ({"prefix_cache_dir": "kept"}, "runtime 'combined' has no prefix_cache_dir"),
        ({"draft": "small.gguf"}, "there is a draft model"),
        ({"block_size": 16}, "block_size is 16"),
        ({"tensor_parallel": 2}, "runtime 'combined' has no tensor_parallel"),
    ],
)
def test_options_against_the_combined_runtime(model, options, reason, capfd):
    assert reason in reason_against(model, EngineConfig(**options))


def test_floats_are_a_reason(tmp_path):
    path = gguf_files.write_model(tmp_path / "model.gguf", kind="F16")
    assert reason_against(path, EngineConfig()) == "its weights are not quantised"


def test_a_type_without_kernels_is_a_reason(model, monkeypatch):
    known = {name: row for name, row in default.FORMATS.items() if name != "Q8_0"}
    monkeypatch.setattr(default, "FORMATS", known)
    assert reason_against(model, EngineConfig()) == "native kernels do not read blocks of Q8_0"


def test_a_directory_is_computed_by_openvino(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    assert reason_against(tmp_path, EngineConfig()) == "the model is no GGUF file"
    assert choose_runtime(tmp_path, AUTO, EngineConfig()) == "openvino"


def test_a_missing_library_is_a_reason(model, monkeypatch):
    monkeypatch.setattr(default, "find_spec", lambda name: None if name == "llvmlite" else name)
    assert reason_against(model, EngineConfig()) == "llvmlite is not installed"


def test_missing_instructions_are_a_reason(model, monkeypatch):
    monkeypatch.setenv(VARIABLE, "sse2")
    assert "'sse2', expected one of" in reason_against(model, EngineConfig())


def test_an_arm_processor_computes_by_openvino_and_says_why(model, monkeypatch, tmp_path):
    """There are no kernels for NEON."""
    processor = tmp_path / "cpuinfo"
    processor.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n\nprocessor\t: 1\n")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(compiler, "_PROCESSOR", processor)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    lines = []
    monkeypatch.setattr(log, "info", lambda text, *values: lines.append(text % values))
    compiler.processor.cache_clear()
    try:
        assert choose_runtime(model, AUTO, EngineConfig()) == "openvino"
        reason = "native kernels need an x86-64 processor with AVX2, this one is aarch64"
        assert f"runtime openvino, and not combined: {reason}" in lines[0]
        with pytest.raises(StartError, match=f"memory is 'low'.*{reason}"):
            choose_runtime(model, AUTO, EngineConfig(memory="low"))
        with pytest.raises(StartError, match=f"{reason} .no name in /proc/cpuinfo.: choose"):
            compiler.instruction_set()
    finally:
        compiler.processor.cache_clear()


def test_options_that_only_combined_has_are_refused_with_the_reason(tmp_path):
    with pytest.raises(StartError, match="no GGUF file: leave it out, or choose the runtime torch"):
        choose_runtime(tmp_path, AUTO, EngineConfig(deterministic=True))
    with pytest.raises(StartError, match="memory is 'low'.*choose the runtime native"):
        choose_runtime(tmp_path, AUTO, EngineConfig(memory="low"))


def test_a_model_that_native_refuses_is_computed_by_openvino(model, monkeypatch):
    from mindspore_serving.llm.runtimes.combined import opening

    def refuse(directory, config):
        raise StartError("a layer that native does not have")

    monkeypatch.setattr(opening, "plan_model", refuse)
    reasons = []
    monkeypatch.setattr(default.log, "info", lambda text, *values: reasons.append(text % values))
    opened, engine = open_ours(model, AUTO, CONFIG)
    assert opened.runtime == opened.card().runtime == "openvino"
    expected = "model.gguf: runtime openvino, and not combined: a layer that native does not have"
    assert expected in reasons
    engine.close()
    with pytest.raises(StartError, match="a layer"):
        open_ours(model, "combined", CONFIG)


def test_the_offline_model_generates_with_low_memory(model):
    with LLM(model, kv_cache_memory=2**20, memory="low") as llm:
        assert llm.generate([[5, 6]], SamplingParams(max_tokens=3))[0].outputs[0].token_ids
