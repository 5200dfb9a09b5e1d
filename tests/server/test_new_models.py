"""Models that clients make of others: what a Modelfile or JSON sets, and what is refused."""

import pytest

from mindspore_serving.core.client_models import NewModel
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.server.new_models import complete, engine_options


def test_parameters_become_options_of_the_engine():
    model = NewModel(
        name="x", source="toy", parameters={"temperature": 0.5, "num_ctx": 256, "stop": ["a"]}
    )
    assert engine_options(complete(model)) == {"default_temperature": 0.5, "max_model_len": 256}


def test_a_modelfile_replaces_the_fields():
    text = 'FROM toy:latest\nPARAMETER top_k 7\nSYSTEM """Be\nbrief."""\nLICENSE mit\n'
    model = complete(NewModel(name="x", source="other", modelfile=text))
    assert (model.source, model.parameters) == ("toy", {"top_k": "7"})
    assert engine_options(model) == {"default_top_k": 7, "system_message": "Be\nbrief."}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "from is missing"),
        ({"source": "/etc/passwd"}, "a path: clients name models, the operator serves files"),
        ({"source": "./model.gguf"}, "a path"),
        ({"source": "~/model"}, "a path"),
        ({"source": "..\\model"}, "a path"),
        ({"modelfile": "FROM /root/model.gguf"}, "a path"),
        ({"modelfile": "FROM toy\nTEMPLATE {{ .Prompt }}"}, "line 2: TEMPLATE is not supported"),
        ({"modelfile": "FROM toy\nADAPTER ./lora"}, "line 2: ADAPTER is not supported"),
        ({"modelfile": "FROM toy\nMESSAGE user hello"}, "line 2: MESSAGE is not supported"),
        ({"modelfile": "RUN rm"}, "is no instruction"),
        ({"modelfile": "x" * 2_000_000}, "has over 1048576 characters"),
        ({"source": "toy", "system": "x" * 70_000}, "system has 70000 characters"),
    ],
)
def test_a_request_beyond_the_rights_of_clients_is_refused(fields, text):
    with pytest.raises(InvalidInputs, match=text):
        complete(NewModel(name="x", **fields))


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"temperature": "warm"}, "temperature is 'warm', expected a number"),
        ({"temperature": -1}, "default_temperature"),
        ({"num_ctx": -5}, "max_model_len"),
        ({"top_k": float("nan")}, "expected a number"),
    ],
)
def test_a_value_out_of_range_is_refused(parameters, text):
    with pytest.raises(InvalidInputs, match=text):
        engine_options(NewModel(name="x", source="toy", parameters=parameters))
