"""The sampling that a model's generation_config.json recommends."""

import json

import pytest

from mindspore_serving.core.default_sampling import SERVER_SAMPLING
from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM
from mindspore_serving.llm.checkpoint.model_files import read_recommended
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from tests.llm import chatty

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
OPTIONS = {"dtype": "f32", "kv_cache_memory": 2 << 20}


def write(directory, **config):
    (directory / "generation_config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Whose authors want its one likeliest token: `top_k` 1."""
    directory = chatty.build(tmp_path_factory.mktemp("recommended"))
    return write(directory, temperature=1.5, top_k=1)


def test_only_sampling_is_read(tmp_path):
    write(tmp_path, temperature=0.6, top_p=0.95, top_k=20, do_sample=True, max_new_tokens=7)
    assert read_recommended(tmp_path) == {"temperature": 0.6, "top_p": 0.95, "top_k": 20}


def test_without_the_file_nothing_is_recommended(tmp_path):
    assert read_recommended(tmp_path) == {}


def test_a_value_out_of_range_is_left_out_with_a_warning(tmp_path, capsys):
    write(tmp_path, temperature="hot", top_p=0.9, min_p=None)
    assert read_recommended(tmp_path) == {"top_p": 0.9}
    warning = capsys.readouterr().err
    assert "generation_config.json is ignored: temperature is 'hot', expected" in warning


def test_a_broken_file_is_refused(tmp_path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(StartError, match="generation_config.json is not JSON"):
        read_recommended(tmp_path)


def test_the_card_has_recommendations_unless_ignored(model):
    opened = open_model(model, "openvino", make_config(OPTIONS))
    card = opened.card()
    assert (dict(card.sampling), card.sampling_source) == (
        {**OFF, "temperature": 1.5, "top_k": 1},
        "model",
    )
    opened.engine.close()
    opened = open_model(model, "openvino", make_config(OPTIONS | {"generation_config": "ignore"}))
    card = opened.card()
    assert (dict(card.sampling), card.sampling_source) == ({**OFF, **SERVER_SAMPLING}, "server")
    opened.engine.close()


def test_each_operators_default_replaces_its_recommendation(model):
    options = {"default_top_k": 7, "default_max_tokens": 5}
    opened = open_model(model, "openvino", make_config(OPTIONS | options))
    card = opened.card()
    assert card.defaults == {**OFF, "temperature": 1.5, "top_k": 7, "max_tokens": 5}
    assert card.sampling_source == "operator"
    opened.engine.close()


def test_the_operators_limit_applies_offline_without_parameters(model):
    with LLM(model, default_max_tokens=3, **OPTIONS) as llm:
        assert len(llm.generate(["Hello"])[0].outputs[0].token_ids) == 3


def test_recommendations_apply_offline_without_parameters(model):
    with LLM(model, **OPTIONS) as llm:
        greedy = llm.generate(["Hello"], SamplingParams(temperature=0.0))
        assert llm.generate(["Hello"])[0].outputs == greedy[0].outputs
        answers = llm.generate(["Hello"] * 8, SamplingParams(temperature=1.5))
        assert len({answer.outputs[0].token_ids for answer in answers}) > 1


def test_another_word_than_auto_and_ignore_is_refused():
    with pytest.raises(InvalidInputs, match="generation_config is 'off', expected auto or ignore"):
        make_config({"generation_config": "off"})
