"""Configuration files of `serve`: what they say, and how errors are reported."""

import json

import jsonschema
import pytest
import yaml

from mindspore_serving.cli import config, config_file, main
from mindspore_serving.cli.config_file import FIELDS, PER_SERVABLE, schema
from mindspore_serving.cli.servables import find, llm_options
from mindspore_serving.cli.settings import ServeSettings
from mindspore_serving.cli.tool_settings import ConfigSettings
from mindspore_serving.errors import InvalidInputs, StartError
from tests.cli.conftest import write_words
from tests.e2e.harness import ROOT

FULL = """
host: 0.0.0.0
http_port: 1700
no_grpc: true
shutdown_timeout: 20
device_ids: [0, 1]
api_key: ["secret-key", 'another "key"']
api_key_file: keys.txt
limit: {head_timeout: 10, max_header_fields: 50}
node_labels: {zone: a, disk: ssd}
batch_axis: {state: 1, rate: -1}
restart_policy: limited
llm_option:
  kv_cache_memory: 2e9
  enable_prefix_caching: false
servables:
  - models/first
  - path: /models/second
    name: two
    num_parallel_workers: 3
    max_batch_delay_ms: 2
    versions: all
"""


@pytest.fixture
def read(tmp_path):
    (tmp_path / "models").mkdir()  # so that models/first is no name of a hub

    def write_and_read(text):
        path = tmp_path / "server.yaml"
        path.write_text(text)
        return config_file.read(str(path))

    return write_and_read


@pytest.mark.parametrize("text", ["http://a/v1", "[http://a/v1]", "\n  - http://a/v1"])
def test_an_upstream_is_a_url_or_a_list(read, text):
    assert read(f"upstream: {text}") == {"upstream": ("http://a/v1",)}
    with pytest.raises(InvalidInputs, match="'upstream' is '1', expected text"):
        read("upstream: [1]")
    with pytest.raises(InvalidInputs, match="'upstream' should be a list"):
        read("upstream: 1")


def test_a_file_has_the_options_of_serve_and_settings_of_servables(read, tmp_path):
    assert read(FULL) == {
        "host": "0.0.0.0",
        "http_port": 1700,
        "no_grpc": True,
        "shutdown_timeout": 20.0,
        "device_ids": (0, 1),
        "api_key": ("secret-key", 'another "key"'),
        "api_key_file": str(tmp_path / "keys.txt"),
        "limit": ("head_timeout=10", "max_header_fields=50"),
        "node_labels": {"zone": "a", "disk": "ssd"},
        "batch_axis": {"state": 1, "rate": -1},
        "restart_policy": "limited",
        "llm_option": ("kv_cache_memory=2000000000.0", "enable_prefix_caching=false"),
        "servables": (
            {"paths": (str(tmp_path / "models/first"),)},
            {
                "paths": ("/models/second",),
                "alias": "two",
                "num_parallel_workers": 3,
                "max_batch_delay_ms": 2.0,
                "versions": "all",
            },
        ),
    }


@pytest.mark.parametrize("text", ["", "# nothing", "---"])
def test_an_empty_file_gives_nothing(read, text):
    assert read(text) == {}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "host: a\nhtpp_port: 1",
            "line 2: there is no option 'htpp_port'; did you mean 'http_port'?",
        ),
        ("http-port: 1", "line 1: there is no option 'http-port'; did you mean 'http_port'?"),
        ("colour: red", "line 1: there is no option 'colour'; there are servables, device_ids,"),
        ("config: other.yaml", "line 1: there is no option 'config'"),
        ("paths: [models]", "line 1: there is no option 'paths'"),
        ("host: a\nhost: b", "line 2: 'host' is there twice"),
        ("limit:\n  head_timeout: 1\n  head_timeout: 2", "line 3: 'head_timeout' is there twice"),
        ("servables:\n  - {path: a, path: b}", "line 2: 'path' is there twice"),
        ("http_port: many", "line 1: 'http_port' is 'many', expected an integer"),
        ("http_port: 1.5", "line 1: 'http_port' is '1.5', expected an integer"),
        ("http_port: [1]", "line 1: 'http_port' is a list, expected an integer"),
        ("http_port:", "line 1: 'http_port' is '', expected an integer"),
        ("http_port: 65536", "line 1: 'http_port' is 65536, expected an int of 1 to 65535"),
        ("stage_timeout: -1", "line 1: 'stage_timeout' is -1.0, expected a number >= 0"),
        ("no_grpc: 1", "line 1: 'no_grpc' is '1', expected true or false"),
        ("name: 12", "line 1: 'name' is '12', expected text"),
        ("poll: yes", "line 1: 'poll' is 'yes', expected a number"),
        ("api_key: secret", "line 1: 'api_key' should be a list"),
        ("device_ids: [0, a]", "line 1: 'device_ids' is 'a', expected an integer"),
        ("limit: [head_timeout]", "line 1: 'limit' should be names with values"),
        (
            "limit:\n  head_timeout: [1]",
            "line 2: 'limit.head_timeout' is a list",
        ),
        ("restart_policy: never ever", "line 1: 'restart_policy' is 'never ever', expected one of"),
        ("servables: models", "line 1: 'servables' should be a list"),
        ("servables:\n  - name: a", "line 2: a servable has 'path' or 'upstream', expected one"),
        (
            "servables:\n  - path: a\n    host: b",
            "line 3: there is no option 'host'; there are",
        ),
        ("servables:\n  - path: 1", "line 2: 'path' is '1', expected text"),
        ("servables:\n  - [a]", "line 2: expected names with values"),
        ("- host", "line 1: expected names with values"),
        ("host: [", "line 1: "),
        ("host: *unknown", "line 1: found undefined alias"),
        ("a: " + "[" * 500_000, "line 1: it is nested too deeply"),
        ("a:\n" + "- " * 5000, "nested too deeply"),
        ("host: !!python/object:os.system a", "line 1: 'host' is 'a', expected text"),
        ("host: \t- a", "line 1: "),
        ("http_port: !!int x", "line 1: 'http_port': a value cannot be read (ValueError: "),
        ("no_grpc: !!bool perhaps", "line 1: 'no_grpc': a value cannot be read (KeyError: "),
        ("http_port: " + "9" * 5000, "line 1: 'http_port': a value cannot be read"),
        ("shutdown_timeout: " + "9" * 400, "line 1: 'shutdown_timeout': a value cannot be read"),
        ("llm_option: {a: !!int " + "1:" * 3000 + "1}", "line 1: 'llm_option.a': a value cannot"),
        ("wait: !!null [a]", "line 1: 'wait' is a list, expected true or false"),
        ("servables: [!!str [a]]", "line 1: expected names with values"),
    ],
)
def test_errors_are_reported_with_their_line(read, text, error):
    with pytest.raises(InvalidInputs) as caught:
        read(text)
    assert error in str(caught.value)
    assert "server.yaml" in str(caught.value)


def test_a_file_that_cannot_be_read_is_a_start_error(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("missing", "binary"):
        with pytest.raises(StartError, match=r"configuration file .* cannot be read: \w"):
            config_file.read(str(tmp_path / name))


def test_a_file_that_is_far_too_large_is_refused(read):
    with pytest.raises(InvalidInputs, match="more than 1048576 bytes"):
        read("#" * (1 << 20) + "\n")


# --- what serve makes of it ---------------------------------------------------------------------


def test_servables_have_settings_of_their_own(read, tmp_path):
    for name in ("one", "two"):
        write_words(tmp_path / name)
    settings = ServeSettings(
        paths=(),
        **read(
            "max_requests: 7\n"
            "servables:\n"
            "  - one\n"
            "  - {path: two/words, name: other, num_parallel_workers: 2, max_requests: 3}"
        ),
    )
    first, second = find(settings)[0]
    assert (first.alias, first.max_requests, first.num_parallel_workers) == ("", 7, 0)
    assert (second.alias, second.max_requests, second.num_parallel_workers) == ("other", 3, 2)


def test_the_backend_is_that_of_model_files_alone(tmp_path):
    write_words(tmp_path / "models")
    (tmp_path / "models" / "net").mkdir()
    (tmp_path / "models" / "net" / "net.onnx").touch()
    settings = ServeSettings(paths=(str(tmp_path / "models"),), backend="openvino")
    backends = {config.servable_name: config.backend for config in find(settings)[0]}
    assert backends == {"net": "openvino", "words": ""}


def test_two_servables_of_the_same_name_are_refused(read, tmp_path):
    for name in ("one", "two"):
        write_words(tmp_path / name)
    settings = ServeSettings(paths=(), **read("servables: [one, two]"))
    with pytest.raises(InvalidInputs, match="two servables have the name 'words'.*another 'name'"):
        find(settings)


def shown(capsys, *words):
    """What `config` prints for these words of the command line."""
    assert main(["config", *words]) == 0
    return capsys.readouterr().out


def test_options_of_the_command_line_come_before_the_file(read, tmp_path, capsys):
    read(FULL)
    path = str(tmp_path / "server.yaml")
    found = yaml.safe_load(shown(capsys, "--config", path, "--http-port", "1800", "more"))
    assert (found["http_port"], found["host"], found["no_grpc"]) == (1800, "0.0.0.0", True)
    assert [one["path"].rpartition("/")[2] for one in found["servables"]] == [
        "more",
        "first",
        "second",
    ]


def test_the_printed_configuration_is_equivalent_except_for_keys(read, tmp_path, capsys):
    given = read(FULL)
    text = shown(capsys, "--config", str(tmp_path / "server.yaml"))
    assert "secret" not in text
    again = ServeSettings(paths=(), **read(text))
    assert again == ServeSettings(paths=(), **given | {"api_key": (config.HIDDEN_KEY,) * 2})


def test_a_wrong_file_ends_the_command_with_a_line(read, tmp_path, capsys):
    with pytest.raises(InvalidInputs):
        read("hots: a")
    assert main(["serve", "--config", str(tmp_path / "server.yaml")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("mindspore-serving: ")
    assert "did you mean 'host'?" in error


def test_serve_needs_a_path_or_a_file(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["serve"])
    assert caught.value.code == 2
    assert "PATH, --upstream or --config" in capsys.readouterr().err


# --- the schema ---------------------------------------------------------------------------------


def test_every_option_of_serve_is_in_the_table():
    defaults = ServeSettings(paths=())
    assert set(PER_SERVABLE) <= set(FIELDS)
    assert all(hasattr(defaults, row.name) for row in FIELDS.values())


def test_schema_and_reader_accept_the_same_files(read):
    validator = jsonschema.validators.validator_for(schema())(schema())
    assert read(FULL) != read("{}")
    assert list(validator.iter_errors(yaml.safe_load(FULL))) == []
    everything = config.effective(ConfigSettings(paths=("models",)))
    assert list(validator.iter_errors(everything)) == []


@pytest.mark.parametrize(
    "text",
    [
        "htpp_port: 1",
        "http_port: many",
        "http_port: -1",
        "servables: [{name: a}]",
        "restart_policy: x",
    ],
)
def test_schema_and_reader_refuse_the_same_files(read, text):
    with pytest.raises(InvalidInputs):
        read(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), schema())


def test_the_published_schema_is_current(capsys):
    published = (ROOT / "docs" / "server.schema.json").read_text()
    assert shown(capsys, "--schema") == published, "mindspore-serving config --schema makes it"
    assert json.loads(published) == schema()


def test_deterministic_goes_to_the_engine_of_language_models():
    settings = ServeSettings(paths=["model"], runtime="torch", deterministic=True)
    assert llm_options(settings) == {"runtime": "torch", "deterministic": True}


def test_cached_prompts_go_to_the_engine_of_language_models(read, tmp_path):
    text = "prefix_cache_dir: cache\nprefix_cache_disk: 8e9\npinned_prompts: pinned.yaml\n"
    assert llm_options(ServeSettings(paths=["model"], **read(text))) == {
        "prefix_cache_dir": str(tmp_path / "cache"),
        "prefix_cache_disk": 8_000_000_000,
        "pinned_prompts": str(tmp_path / "pinned.yaml"),
    }


def test_paths_of_models_beside_a_model_are_relative_to_their_source(read, tmp_path, monkeypatch):
    (settings,) = ServeSettings(
        paths=[], **read("servables: [{path: model, draft: ../small}]")
    ).parts()
    assert llm_options(settings)["draft"] == str(tmp_path.parent / "small")
    monkeypatch.chdir(tmp_path)
    settings = ServeSettings(paths=["model"], draft="small.gguf", mmproj="tower.gguf")
    assert llm_options(settings) == {
        "draft": str(tmp_path / "small.gguf"),
        "mmproj": str(tmp_path / "tower.gguf"),
    }


def test_a_url_of_the_state_is_no_path_and_its_password_is_hidden(read):
    url = "postgresql://anna:secret@db/state?sslmode=require"
    assert read(f"state: {url}") == {"state_directory": url}
    shown = config.effective(ConfigSettings(paths=[], state_directory=url))
    assert shown["state"] == "postgresql://db/state"
    assert "secret" not in repr(ConfigSettings(paths=[], state_directory=url))


def test_the_password_of_a_store_of_blocks_is_hidden():
    settings = ConfigSettings(paths=["model"], prefix_cache_store="redis://:secret@store:6379/0")
    assert config.effective(settings)["prefix_cache_store"] == "redis://store:6379/0"
