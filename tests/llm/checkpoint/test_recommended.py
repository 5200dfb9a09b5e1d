"""The sampling that a model's generation_config.json recommends."""

import json

import pytest

from mindspore_serving.core.sampling_params import SamplingParams
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.llm import LLM
from mindspore_serving.llm.checkpoint.model_files import read_recommended
from mindspore_serving.llm.loader import open_model
from mindspore_serving.llm.options import make_config
from tests.llm import chatty

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
    assert opened.card().sampling == (("temperature", 1.5), ("top_k", 1))
    opened.engine.close()
    opened = open_model(model, "openvino", make_config(OPTIONS | {"generation_config": "ignore"}))
    assert opened.card().sampling == ()
    opened.engine.close()


def test_recommendations_apply_offline_without_parameters(model):
    with LLM(model, **OPTIONS) as llm:
        greedy = llm.generate(["Hello"], SamplingParams(temperature=0.0))
        assert llm.generate(["Hello"])[0].outputs == greedy[0].outputs
        answers = llm.generate(["Hello"] * 8, SamplingParams(temperature=1.5))
        assert len({answer.outputs[0].token_ids for answer in answers}) > 1


def test_another_word_than_auto_and_ignore_is_refused():
    with pytest.raises(InvalidInputs, match="generation_config is 'off', expected auto or ignore"):
        make_config({"generation_config": "off"})
