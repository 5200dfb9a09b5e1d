import os

import pytest

from mindspore_serving.core.declaration import Declaration, DistributedSpec
from mindspore_serving.servable.method_builder import declaring
from mindspore_serving.servable.model import Model, declare_model
from mindspore_serving.server import distributed


def declare(*args, **kwargs):
    declaration = Declaration("big")
    with declaring(declaration):
        model = distributed.declare_servable(*args, **kwargs)
    return declaration.distributed, model


def test_a_declaration_is_recorded_and_its_model_has_the_servables_name():
    assert declare(8, 1) == (DistributedSpec(8, 1), Model("big"))
    spec, _ = declare(8, 4, False, 0, True)
    assert spec == DistributedSpec(8, 4, False, (0,), True)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((0, 1), "Parameter 'rank_size' should be >= 1"),
        (("8", 1), "Parameter 'rank_size' should be int"),
        ((8, 0), "Parameter 'stage_size' should be >= 1"),
        ((8, 1, 1), "Parameter 'with_batch_dim' should be bool"),
        ((8, 1, True, "0"), "Parameter 'without_batch_dim_inputs' should be int or tuple/list"),
        ((8, 1, True, None, 1), "Parameter 'enable_pipeline_infer' should be bool"),
    ],
)
def test_a_declaration_checks_its_arguments(args, text):
    with pytest.raises(RuntimeError, match=text):
        declare(*args)


def test_a_servable_is_distributed_once_and_not_local_too():
    with declaring(Declaration("big")):
        distributed.declare_servable(8, 1)
        with pytest.raises(RuntimeError, match="is repeatedly been declared as distributed"):
            distributed.declare_servable(8, 1)
    with declaring(Declaration("big")):
        declare_model("a.mindir", "MindIR")
        with pytest.raises(RuntimeError, match="has already been declared as local servable"):
            distributed.declare_servable(8, 1)


def test_a_declaration_belongs_in_a_servable_config():
    with pytest.raises(RuntimeError, match="Failed to obtain the directory of servable_config"):
        distributed.declare_servable(8, 1)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"servable_directory": 1}, "Parameter 'servable_directory' should be str"),
        ({"servable_name": ""}, "Parameter 'servable_name' should not be empty str"),
        ({"rank_table_json_file": 1}, "Parameter 'rank_table_json_file' should be str"),
        ({"version_number": -1}, "Parameter 'version_number' should be >= 0"),
        ({"distributed_address": ""}, "Parameter 'distributed_address' should not be empty"),
        (
            {"wait_agents_time_in_seconds": -1},
            "Parameter 'wait_agents_time_in_seconds' should be >= 0",
        ),
        ({"stage_timeout": "1"}, "Parameter 'stage_timeout' should be int or float"),
        ({"heartbeat_timeout": -1}, "Parameter 'heartbeat_timeout' should be >= 0 and finite"),
        ({"distributed_address": "6200"}, "The format of the Distributed server address '6200'"),
        ({"distributed_address": "a:b"}, "address 'a:b' port is not a number"),
        ({}, "Check servable config failed, directory '.*d/n' not exist"),
    ],
)
def test_start_servable_checks_its_arguments(kwargs, text):
    given = {"servable_directory": "d", "servable_name": "n", "rank_table_json_file": "r", **kwargs}
    with pytest.raises(RuntimeError, match=text):
        distributed.start_servable(**given)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (None, "The rank table '.*r.json' cannot be read: No such file"),
        (b"\xff", "The rank table '.*r.json' cannot be read: it is not UTF-8 at byte 0"),
        (b"[]", "The rank table is wrong: expected an object with either"),
    ],
)
def test_start_servable_checks_the_rank_table(tmp_path, table, text):
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / "servable_config.py").touch()
    if table is not None:
        (tmp_path / "r.json").write_bytes(table)
    with pytest.raises(RuntimeError, match=text):
        distributed.start_servable(str(tmp_path), "n", str(tmp_path / "r.json"))


@pytest.fixture
def files(tmp_path):
    made = [str(tmp_path / name) for name in ("0.mindir", "1.mindir", "0.pb", "1.pb")]
    for path in made:
        with open(path, "wb"):
            pass
    return made


def startup(model_files, *args, **kwargs):
    with pytest.raises(RuntimeError) as caught:
        distributed.startup_agents("127.0.0.1:6200", model_files, *args, **kwargs)
    return caught.value


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"agent_start_port": 0}, "Parameter 'agent_start_port' should be in range [1,65528]"),
        ({"agent_start_port": 65529}, "Parameter 'agent_start_port' should be in range [1,65528]"),
        ({"agent_ip": "10.0.0.1"}, "Parameter 'agent_ip' and parameter 'rank_start' must have"),
        ({"rank_start": 0}, "Parameter 'agent_ip' and parameter 'rank_start' must have"),
        (
            {"agent_ip": "10.0.0.256", "rank_start": 0},
            "Check ip 'agent_ip' valid failed, agent_ip: 10.0.0.256",
        ),
        ({"agent_ip": 1, "rank_start": 0}, "Parameter 'agent_ip' should be str"),
        ({"agent_ip": "10.0.0.1", "rank_start": -1}, "Parameter 'rank_start' should be >= 0"),
        ({"dec_key": b"k"}, "Parameter 'dec_key' length 1 expected to be 16, 24 or 32"),
        ({"dec_mode": "ECB"}, "Parameter 'dec_mode' expected to be 'AES-GCM' or 'AES-CBC'"),
        ({"group_config_files": 1}, "'group_config_files' should be str or tuple/list of str"),
        ({"group_config_files": ["/none.pb"]}, "Cannot access group config file '/none.pb'"),
        (
            {"group_config_files": ["a.pb", "b.pb"]},
            "Model files count 1 does not equal to group config files count 2",
        ),
    ],
)
def test_agents_arguments_are_checked(files, kwargs, text):
    assert text in str(startup(files[0], **kwargs))


@pytest.mark.parametrize(
    ("models", "text"),
    [
        (1, "Parameter 'model_files' should be str or tuple/list of str"),
        ([], "Parameter 'model_files' should not be an empty tuple or list"),
        ([["a", 1]], "The item of parameter 'model_files' should be str"),
        ([""], "The item of parameter 'model_files' should not be empty str"),
        ("/none.mindir", "Cannot access model file '/none.mindir'"),
        ([["/none.mindir"]], "Cannot access model file '/none.mindir'"),
    ],
)
def test_agents_model_files_are_checked(models, text):
    assert text in str(startup(models))


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (6200, "Parameter 'distributed_address' should be str"),
        ("localhost", "The format of the Distributed server address 'localhost' is illegal"),
        ("localhost:0", "port of the Distributed server address 'localhost:0' is out of legal"),
    ],
)
def test_an_address_of_an_agents_server_is_a_text(files, address, text):
    with pytest.raises(RuntimeError, match=text):
        distributed.startup_agents(address, files[0])
    assert os.path.exists(files[0])
