"""Networks in code on the command line and in configuration files: what is served, what is not."""

import json

import numpy as np
import pytest

from mindspore_serving.cli import config_file, networks
from mindspore_serving.cli.servables import find
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.core.network import parse_arguments, parse_inputs, parse_spec
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.frontends.v2.load_config import to_changes
from mindspore_serving.servable.discovery import discover
from mindspore_serving.servable.fingerprint import fingerprint
from mindspore_serving.server import ServableStartConfig, config
from mindspore_serving.server.config import to_deployments


@pytest.fixture
def directory(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text("raise SystemExit('the server has run the file')\n")
    (tmp_path / "net.ckpt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*paths, **options):
    configs, _ = find(ServeSettings(paths=paths, **options))
    return configs


def test_a_network_is_a_servable_with_the_name_of_its_file(directory):
    (config,) = found("net.py:Net", weights="net.ckpt", arguments={"n": 2}, mode="graph")
    assert (config.servable_directory, config.servable_name) == (str(directory), "net.py")
    assert (config.network, config.alias) == ("Net", "net")
    assert config.weights == str(directory / "net.ckpt")
    (deployment,) = to_deployments([config])
    code = deployment.network_code
    assert (code.name, code.arguments, code.mode) == ("Net", {"n": 2}, "graph")


def test_a_configuration_file_names_a_network_relative_to_itself(directory):
    (directory / "serve.yaml").write_text(
        "servables:\n- path: net.py:Net\n  weights: net.ckpt\n  arguments: {n: 2, small: true}\n"
        "  inputs: {x: 'float32[-1,2]'}\n"
    )
    settings = ServeSettings(paths=(), **config_file.read(str(directory / "serve.yaml")))
    (config,) = find(settings)[0]
    assert config.arguments == {"n": 2, "small": True}
    assert config.inputs == {"x": "float32[-1,2]"}
    assert config.weights == str(directory / "net.ckpt")


def test_code_in_a_directory_of_models_is_not_a_servable(directory):
    with pytest.raises(StartError, match="serve its code by net.py:Net --weights"):
        discover(str(directory))
    with pytest.raises(StartError, match="a network of this file by its class, as net.py:Net"):
        discover(str(directory / "net.py"))


def test_a_load_of_a_client_cannot_name_a_network():
    for option in ("network", "weights", "arguments", "inputs", "mode"):
        with pytest.raises(InvalidInputs, match=option):
            to_changes(json.dumps({"parameters": {option: {"string_value": "x"}}}), {})


@pytest.mark.parametrize(
    ("paths", "options", "problem"),
    [
        (["net.onnx"], {"weights": "net.ckpt"}, "--weights is for one network in code"),
        (["net.py:A", "net.py:B"], {"mode": "graph"}, "2 are served: write a configuration file"),
        (["nte.py:Net"], {}, "There is no file '.*nte.py'; did you mean 'net.py'"),
        (["net.py:Net"], {"weights": "ten.ckpt"}, "There is no file '.*; did you mean 'net.ckpt'"),
        (["net.py:Net"], {"inputs": {"x": "float[2]"}}, "type 'float', which does not exist"),
    ],
)
def test_a_wrong_path_or_option_of_a_network_is_refused(directory, paths, options, problem):
    with pytest.raises((InvalidInputs, StartError), match=problem):
        found(*paths, **options)


def test_code_is_never_taken_from_another_host():
    assert networks.of(ServeSettings(paths=["https://host/net.py:Net", "hf://me/net.py:Net"])) == []


def test_code_that_was_downloaded_from_a_model_hub_is_refused(monkeypatch, directory):
    monkeypatch.setattr(config, "resolve", lambda *_, **__: str(directory / "net.py"))
    with pytest.raises(InvalidInputs, match="code in repositories is never run"):
        ServableStartConfig("hf://me/nets:net.py", "net.py", network="Net")


def test_options_of_networks_need_a_network(directory):
    with pytest.raises(InvalidInputs, match="'weights' is for a network in code"):
        ServableStartConfig(str(directory), "net.py", weights="net.ckpt")
    with pytest.raises(InvalidInputs, match="expected a class or function of a Python file"):
        ServableStartConfig(str(directory), "net.ckpt", network="Net")


def test_arguments_are_pairs_or_json():
    assert parse_arguments("n=2,name=small,rate=0.5,x=null") == {
        "n": 2, "name": "small", "rate": 0.5, "x": None,
    }  # fmt: skip
    assert parse_arguments('{"widths": [4, 8]}') == {"widths": [4, 8]}
    assert parse_arguments("widths=[4,8],n=1") == {"widths": [4, 8], "n": 1}
    for wrong in ("n", "n=1,n=2", "{", "=1"):
        with pytest.raises(InvalidInputs):
            parse_arguments(wrong)


def test_inputs_are_described_or_like_an_example(directory):
    np.save(directory / "x.npy", np.zeros((5, 1, 28), np.float16))
    np.save(directory / "code.npy", np.array([print]), allow_pickle=True)
    assert parse_inputs("x=@x.npy,mask=bool[-1,2]") == {
        "x": "float16[-1,1,28]",
        "mask": "bool[-1,2]",
    }
    with pytest.raises(InvalidInputs, match=r"code.npy' cannot be read"):
        parse_inputs("x=@code.npy")
    assert parse_spec("x", "int64[]").shape == ()
    for wrong in ("float32", "float32[a]", "float32[-2]", "float32[999999,999999]", "str[1]"):
        with pytest.raises(InvalidInputs):
            parse_spec("x", wrong)


def test_a_change_of_code_or_weights_is_noticed(directory):
    def look():
        return {
            p for p, *_ in fingerprint(str(directory), "net.py", 0, str(directory / "net.ckpt"))
        }

    (directory / "layers.py").touch()
    assert look() == {"net.py", "layers.py", "net.ckpt"}
