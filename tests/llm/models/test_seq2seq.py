"""Specs of models with an encoder and a decoder: tables of positions, limits, refusals."""

import numpy as np
import pytest
import torch
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from mindspore_serving.errors import StartError
from mindspore_serving.llm.descriptions.families.seq2seq import SEQ2SEQ
from mindspore_serving.llm.inspection import summarize_checkpoint, summarize_config
from mindspore_serving.llm.models.seq2seq import open_seq2seq, read_spec
from tests.llm import translators
from tests.llm.translators import BART, FAMILIES, T5

pytestmark = pytest.mark.torch


def spec_of(name, **changes):
    kind, fields = FAMILIES[name]
    return read_spec({"architectures": [kind], **fields, **changes}, {})


def test_all_families_are_compared():
    assert {kind for kind, _ in FAMILIES.values()} == set(SEQ2SEQ)


@pytest.mark.parametrize(("count", "limit"), [(16, 20), (32, 128), (64, 256), (32, 20)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_buckets_of_distances_are_those_of_transformers(count, limit, is_causal):
    spec = spec_of(
        "t5",
        relative_attention_num_buckets=count,
        relative_attention_max_distance=limit,
        n_positions=3000,
    )
    distances = torch.arange(-2999, 3000)
    expected = T5Attention._relative_position_bucket(distances, not is_causal, count, limit)
    assert np.array_equal(spec.buckets(is_causal=is_causal), expected.numpy())


def test_sinusoidal_positions_are_those_of_transformers():
    table = spec_of("marian").positions()
    module = MarianSinusoidalPositionalEmbedding(*table.shape)
    assert np.abs(table - module.create_weight().numpy()).max() < 1e-6
    table = spec_of("m2m100", pad_token_id=1).positions()
    expected = M2M100SinusoidalPositionalEmbedding.get_embedding(len(table) + 2, table.shape[1], 1)
    assert np.abs(table - expected.numpy()[2:]).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("bart", {"d_model": None}, "d_model is None, expected 1 to"),
        ("bart", {"encoder_attention_heads": 5}, r"d_model is 32, which \[5, 4\] heads"),
        ("bart", {"encoder_attention_heads": 2}, "expected as many in both"),
        ("bart", {"activation_function": "tanh"}, "the activation is 'tanh', expected one of"),
        ("bart", {"decoder_start_token_id": 999}, "decoder_start_token_id and forced_bos_token_id"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "expected one vocabulary"),
        ("marian", {"bad_words_ids": [3]}, r"bad_words_ids is \[3\], expected lists"),
        ("t5", {"num_heads": 0}, "num_heads is 0, expected 1 to"),
    ],
)
def test_settings_out_of_range_are_refused(name, changes, text):
    with pytest.raises(StartError, match=text):
        spec_of(name, **changes)


def test_a_tensor_that_is_not_read_is_refused(tmp_path):
    directory = translators.build("t5", tmp_path)
    config = (directory / "config.json").read_text()
    (directory / "config.json").write_text(config.replace('"num_layers": 2', '"num_layers": 1'))
    with pytest.raises(StartError, match=r"tensors that T5ForConditionalGeneration .* not have"):
        open_seq2seq(directory)


def test_contexts_of_tables_cannot_grow():
    assert spec_of("bart").max_positions == BART["max_position_embeddings"]
    longer = read_spec({"architectures": ["T5ForConditionalGeneration"], **T5}, {}, 4000)
    assert longer.max_positions == 4000
    assert read_spec({"architectures": ["MarianMTModel"], **BART}, {}, 4000).max_positions == 160


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_a_summary_of_the_files_names_sizes(name, tmp_path):
    directory = translators.build(name, tmp_path)
    read = summarize_checkpoint(directory, "auto")
    written = summarize_config(directory, "auto", stored="", num_bytes=1)
    for summary in (read, written):
        assert (summary.task, summary.problem) == ("text-generation", "")
        assert summary.context_length == 2 * translators.LONGEST
        width = 24 if name == "t5" else 32
        assert summary.cache_bytes_per_token == 2 * 4 * 3 * width
    assert dict(read.sampling) == {"temperature": 0.0}
