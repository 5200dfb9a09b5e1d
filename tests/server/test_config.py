import os
import sys

import pytest

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable import merging
from mindspore_serving.server import _servable_local, config
from mindspore_serving.server.config import ServableStartConfig, merge_config
from mindspore_serving.server.ssl_config import SSLConfig

KEY = b"k" * 16


@pytest.fixture
def directory(tmp_path):
    for version in ("1", "2"):
        (tmp_path / "add" / version).mkdir(parents=True)
    (tmp_path / "add" / "servable_config.py").write_text("")
    return str(tmp_path)


def test_defaults_are_a_worker_without_a_device(directory):
    made = ServableStartConfig(directory, "add")
    assert made.servable_directory == directory
    assert made.servable_name == "add"
    assert made.device_ids == ()
    assert made.version_number == 0
    assert made.device_type == "none"
    assert made.num_parallel_workers == 1
    assert made.dec_key is None
    assert made.dec_mode == "AES-GCM"
    assert made.max_batch_delay_ms == 0
    assert made.preferred_batch_size == 0
    assert made.retry is True


def test_arguments_may_be_given_in_the_order_of_the_original(directory):
    made = ServableStartConfig(directory, "add", (0, 2), 1, "GPU", 4, KEY, "AES-CBC")
    assert (made.device_ids, made.version_number, made.device_type) == ((0, 2), 1, "gpu")
    assert (made.num_parallel_workers, made.dec_key, made.dec_mode) == (4, KEY, "AES-CBC")


def test_a_device_may_be_a_number_and_needs_no_other_worker(directory):
    made = ServableStartConfig(directory, "add", device_ids=0)
    assert (made.device_ids, made.num_parallel_workers) == ((0,), 0)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, "none"), ("None", "none"), ("ASCEND", "ascend"), ("gpu", "gpu"), ("Cpu", "cpu")],
)
def test_device_types_are_known_in_any_case(directory, given, kept):
    assert ServableStartConfig(directory, "add", device_type=given).device_type == kept


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"servable_directory": ""}, "Parameter 'servable_directory' should not be empty str"),
        ({"servable_directory": 1}, "Parameter 'servable_directory' should be str, but actually"),
        ({"servable_name": False}, "Parameter 'servable_name' should be str, but actually"),
        ({"servable_name": ""}, "Parameter 'servable_name' should not be empty str"),
        ({"servable_name": "../add"}, "Parameter 'servable_name' should be 1 to 128 letters"),
        ({"device_ids": "1"}, "Parameter 'device_ids' should be int or tuple/list of int"),
        ({"device_ids": -1}, "The item value '-1' in parameter 'device_ids' should be >= 0"),
        ({"device_ids": (1, 1)}, "in parameter 'device_ids' should not be repeated"),
        ({"version_number": False}, "Parameter 'version_number' should be int, but actually"),
        ({"version_number": -1}, "Parameter 'version_number' should be >= 0"),
        ({"device_type": 123}, "Parameter 'device_type' should be str, but actually"),
        ({"device_type": ""}, "Parameter 'device_type' should not be empty str"),
        (
            {"device_type": "TPU"},
            "Unsupported device type 'TPU', only support 'Ascend', 'GPU', 'CPU' and None, case "
            "ignored",
        ),
        ({"num_parallel_workers": 65}, "'num_parallel_workers' should be in range [0,64]"),
        ({"num_parallel_workers": "1"}, "Parameter 'num_parallel_workers' should be int"),
        ({"dec_key": "k" * 16}, "Parameter 'dec_key' should be bytes"),
        ({"dec_key": b""}, "Parameter 'dec_key' should not be empty bytes"),
        ({"dec_key": b"abc"}, "Parameter 'dec_key' length 3 expected to be 16, 24 or 32"),
        ({"dec_mode": "ECB"}, "Parameter 'dec_mode' expected to be 'AES-GCM' or 'AES-CBC'"),
        ({"max_batch_delay_ms": -1}, "Parameter 'max_batch_delay_ms' should be >= 0"),
        ({"max_batch_delay_ms": float("nan")}, "'max_batch_delay_ms' should be >= 0 and finite"),
        ({"max_batch_delay_ms": "5"}, "'max_batch_delay_ms' should be int or float"),
        ({"max_batch_delay_ms": True}, "'max_batch_delay_ms' should be int or float"),
        ({"preferred_batch_size": -1}, "Parameter 'preferred_batch_size' should be in range"),
        ({"preferred_batch_size": 2**16 + 1}, "should be in range [0,65536], but actually 65537"),
        ({"preferred_batch_size": 10**5000}, "but actually an int of 16610 bits"),
        ({"version_number": 2**63}, "should be >= 0, but actually an int of 64 bits"),
        ({"max_batch_delay_ms": 10**5000}, "should be of 64 bits, but actually an int of 16610"),
        ({"preferred_batch_size": 1.5}, "Parameter 'preferred_batch_size' should be int"),
        ({"retry": 1}, "Parameter 'retry' should be bool"),
    ],
)
def test_a_wrong_argument_is_a_runtime_error(directory, kwargs, text):
    with pytest.raises(RuntimeError) as caught:
        ServableStartConfig(**{"servable_directory": directory, "servable_name": "add", **kwargs})
    assert text in str(caught.value)


def test_roles_set_the_number_of_workers(directory):
    made = ServableStartConfig(directory, "add", roles={"prefill": 1, "decode": 2})
    assert (made.num_parallel_workers, made.roles) == (3, {"prefill": 1, "decode": 2})
    made = ServableStartConfig(directory, "add", (0, 1), roles={"prefill": 1, "decode": 1})
    assert (made.device_ids, made.num_parallel_workers) == ((0, 1), 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_workers": 2}, "'max_workers' is 2, expected 0 with 'roles'"),
        ({"rank_machines": 2}, "'rank_machines' is 2, expected 1 with 'roles'"),
        ({"num_parallel_workers": 2}, "'roles' has 3 workers, but 'num_parallel_workers' 2"),
        ({"device_ids": (0, 1)}, "'roles' has 3 workers, but 'device_ids' 2"),
        ({"roles": {"decode": 2}}, "'roles' is {'decode': 2}, expected numbers of workers"),
    ],
)
def test_workers_that_can_have_no_role_are_refused(directory, options, text):
    with pytest.raises(RuntimeError, match=text):
        ServableStartConfig(directory, "add", **{"roles": {"prefill": 1, "decode": 2}, **options})


@pytest.mark.parametrize("name", ["device_ids", "dec_key", "servable_directory", "other"])
def test_a_config_is_read_only(directory, name):
    with pytest.raises(AttributeError):
        setattr(ServableStartConfig(directory, "add"), name, None)


def test_a_config_can_be_a_key_and_is_equal_to_itself_alone(directory):
    first, second = ServableStartConfig(directory, "add"), ServableStartConfig(directory, "add")
    assert len({first, second}) == 2


def test_new_arguments_are_keywords(directory):
    with pytest.raises(TypeError):
        ServableStartConfig(directory, "add", None, 0, None, 0, None, "AES-GCM", 5)


def test_a_key_is_not_shown(directory):
    made = ServableStartConfig(directory, "add", dec_key=KEY)
    assert "kkkk" not in repr(made)
    assert "'add'" in repr(made)


def test_a_deployment_has_everything(directory):
    made = ServableStartConfig(
        directory,
        "add",
        (1,),
        2,
        "CPU",
        3,
        KEY,
        "AES-CBC",
        max_batch_delay_ms=2.5,
        preferred_batch_size=8,
        retry=False,
    )
    assert config.to_deployments([made], enable_lite=True) == [
        Deployment(
            servable_directory=directory,
            servable_name="add",
            version_number=2,
            device_type="cpu",
            device_ids=(1,),
            num_parallel_workers=3,
            dec_key=KEY,
            dec_mode="AES-CBC",
            max_batch_delay_ms=2.5,
            preferred_batch_size=8,
            enable_lite=True,
            retry=False,
        )
    ]
    assert config.to_deployments([made])[0].enable_lite is False
    assert made.max_batch_delay_ms == 2.5


def test_a_relative_path_is_relative_to_the_script(tmp_path, monkeypatch):
    script = tmp_path / "scripts" / "start.py"
    script.parent.mkdir()
    script.write_text("")
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    assert config.get_abs_path("models") == str(script.parent / "models")
    assert config.get_abs_path("../models") == str(tmp_path / "models")
    assert config.get_abs_path("/models") == "/models"
    assert ServableStartConfig(".", "add").servable_directory == str(script.parent)


def test_without_a_script_a_path_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert config.get_abs_path("models") == str(tmp_path / "models")
    monkeypatch.setattr(sys, "argv", [__file__])
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    assert config.get_abs_path("models") == str(tmp_path / "models")


def both(directory, *kwargs):
    return merge_config([ServableStartConfig(directory, "add", **each) for each in kwargs])


def test_configs_of_the_same_version_are_merged(directory):
    (merged,) = both(
        directory,
        {"device_ids": (3, 1), "num_parallel_workers": 2},
        {"device_ids": (1, 0), "version_number": 2, "num_parallel_workers": 5},
    )
    assert merged.version_number == 2
    assert merged.device_ids == (3, 1, 0)
    assert merged.num_parallel_workers == 5


def test_versions_stay_apart_in_order_of_appearance(directory):
    newest, first = both(directory, {"device_ids": 1}, {"device_ids": 2, "version_number": 1})
    assert (newest.version_number, newest.device_ids) == (2, (1,))
    assert (first.version_number, first.device_ids) == (1, (2,))


def test_servables_stay_apart_in_order_of_appearance(directory, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "servable_config.py").write_text("")
    names = ["sub", "add", "sub"]
    merged = merge_config(
        tuple(ServableStartConfig(directory, name, device_ids=i) for i, name in enumerate(names))
    )
    assert [each.servable_name for each in merged] == ["sub", "add"]
    assert merged[0].device_ids == (0, 2)
    assert merged[0].version_number == 0  # it has no version directory


def test_a_servable_has_a_single_directory(directory, tmp_path):
    (tmp_path / "copy" / "add").mkdir(parents=True)
    with pytest.raises(InvalidInputs) as caught:
        merge_config(
            [
                ServableStartConfig(directory, "add"),
                ServableStartConfig(str(tmp_path / "copy"), "add"),
            ]
        )
    assert str(caught.value) == (
        "The servable directory of servable name add is different in multiple configurations, "
        f"servable directory: {directory} and {tmp_path / 'copy'}"
    )


@pytest.mark.parametrize(
    "other", [{"dec_key": b"q" * 16}, {"dec_key": KEY, "dec_mode": "AES-CBC"}, {}]
)
def test_a_version_has_a_single_key(directory, other):
    with pytest.raises(RuntimeError, match="The dec key or dec mode of servable name add is"):
        both(directory, {"dec_key": KEY}, other)


def test_two_versions_may_have_two_keys(directory):
    newest, first = both(directory, {"dec_key": KEY}, {"dec_key": b"q" * 16, "version_number": 1})
    assert (newest.dec_key, first.dec_key) == (KEY, b"q" * 16)


@pytest.mark.parametrize(
    "other", [{"max_batch_delay_ms": 1}, {"preferred_batch_size": 2}, {"retry": False}]
)
def test_a_version_has_a_single_setting_of_batches_and_retries(directory, other):
    with pytest.raises(RuntimeError, match="is different in multiple configurations"):
        both(directory, {}, other)


def test_the_first_device_type_of_a_servable_holds_and_the_user_is_told(directory, monkeypatch):
    logged = []
    monkeypatch.setattr(merging.log, "warning", lambda msg, *args: logged.append(msg % args))
    merged = both(directory, {"device_type": "CPU"}, {"device_type": "GPU", "version_number": 1})
    assert [each.device_type for each in merged] == ["cpu", "cpu"]
    assert len(logged) == 1
    assert "gpu is ignored" in logged[0]


def test_merging_changes_no_argument(directory):
    given = ServableStartConfig(directory, "add", device_ids=0)
    merge_config([given, ServableStartConfig(directory, "add", device_ids=1)])
    assert (given.version_number, given.device_ids) == (0, (0,))


def test_an_ascend_device_serves_a_single_version(directory):
    shared = [{"device_ids": 2}, {"device_ids": (1, 2), "version_number": 1}]
    assert len(both(directory, *({**each, "device_type": "CPU"} for each in shared))) == 2
    with pytest.raises(
        RuntimeError, match="Ascend 910 device id 2 is used repeatedly in servable add"
    ):
        both(directory, *({**each, "device_type": "Ascend"} for each in shared))


def test_a_servable_that_is_not_there_is_found_out(directory, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(StartError, match="Check servable config failed, directory '"):
        merge_config([ServableStartConfig(directory, "none")])
    with pytest.raises(StartError, match="Check servable config failed, file '"):
        merge_config([ServableStartConfig(directory, "empty")])


def test_a_bare_model_directory_can_be_started(directory, tmp_path):
    (tmp_path / "bare" / "3").mkdir(parents=True)
    (tmp_path / "bare" / "3" / "model.onnx").write_bytes(b"")
    (merged,) = merge_config([ServableStartConfig(directory, "bare")])
    assert merged.version_number == 3


def test_contradictions_are_found_before_missing_directories(directory):
    with pytest.raises(InvalidInputs, match="The servable directory of servable name add is"):
        merge_config(
            [ServableStartConfig(directory, "add"), ServableStartConfig(directory + "2", "add")]
        )


def test_the_kept_path_has_the_same_objects():
    assert _servable_local.merge_config is merge_config
    assert _servable_local.ServableStartConfig is ServableStartConfig


def test_tls_without_client_certificates_needs_two_files():
    made = SSLConfig("server.crt", "server.key")
    assert (made.custom_ca, made.verify_client) == (None, False)
    assert SSLConfig("c", "k", "ca.crt", True).custom_ca == "ca.crt"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((1, "k"), "Parameter 'certificate' should be str"),
        (("c", ""), "Parameter 'private_key' should not be empty str"),
        (("c", "k", None, 1), "Parameter 'verify_client' should be bool"),
        (("c", "k", None, True), "Parameter 'custom_ca' should be str"),
        (("c", "k", "", True), "Parameter 'custom_ca' should not be empty str"),
    ],
)
def test_tls_arguments_are_checked(args, text):
    with pytest.raises(RuntimeError, match=text):
        SSLConfig(*args)


def test_descriptions_of_other_servers_set_defaults_of_arguments(tmp_path):
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "config.pbtxt").write_text(
        "instance_group { count: 2 kind: KIND_CPU } input { name: 'x' data_type: TYPE_FP32 } "
        "dynamic_batching { max_queue_delay_microseconds: 1500 preferred_batch_size: 4 }"
    )
    made = ServableStartConfig(str(tmp_path), "net", preferred_batch_size=8)
    assert (made.num_parallel_workers, made.device_type) == (2, "cpu")
    assert (made.max_batch_delay_ms, made.preferred_batch_size) == (1.5, 8)
    assert made.with_batch_dim is False


def test_a_description_that_cannot_be_followed_is_an_error_of_the_config(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "config.pbtxt").write_text("sequence_batching {}")
    with pytest.raises(StartError, match="sequence_batching has no state"):
        ServableStartConfig(str(tmp_path), "net")


def test_options_of_a_modelfile_are_below_those_of_the_script(tmp_path):
    (tmp_path / "net.gguf").touch()
    (tmp_path / "Modelfile").write_text("FROM net.gguf\nPARAMETER num_ctx 64\nPARAMETER top_k 5")
    made = ServableStartConfig(str(tmp_path), "Modelfile", llm_options={"max_model_len": 32})
    assert made.llm_options == {"max_model_len": 32, "default_top_k": 5}
    assert made.alias == tmp_path.name


@pytest.mark.parametrize(
    "options",
    [
        {"default_priority": 1},
        {"priority_levels": 2, "default_priority": 3},
        {"level_queue_ms": {"1": 5}},
        {"priority_levels": 2, "level_queue_ms": {"3": 5}},
        {"priority_levels": 2, "level_queue_sizes": {"0": 5}},
        {"priority_levels": 2, "level_queue_sizes": {"1": 0}},
        {"priority_levels": 2, "level_queue_sizes": {"first": 1}},
        {"cores": "first"},
    ],
)
def test_levels_and_cores_that_do_not_exist_are_refused(directory, options):
    with pytest.raises(RuntimeError, match="expected"):
        ServableStartConfig(directory, "add", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_store": "redis://127.0.0.1"}, "needs 'cache_mb'"),
        ({"cache_store": "directory", "cache_mb": 1}, "is no URL, expected one as rediss://"),
    ],
)
def test_a_store_of_answers_needs_a_cache_and_a_url(directory, options, message):
    with pytest.raises(RuntimeError, match=message):
        ServableStartConfig(directory, "add", **options)


def test_the_store_of_answers_is_a_secret_and_its_key_a_path(directory):
    options = {"cache_mb": 1, "cache_store_key": "key", "cache_store": "redis://user:pass@host"}
    config = ServableStartConfig(directory, "add", **options)
    assert os.path.isabs(config.cache_store_key)
    assert "pass" not in repr(config)
