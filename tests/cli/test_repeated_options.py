"""Options that are given twice: repeatable ones collect, all others are refused by name."""

import argparse
from dataclasses import replace

import pytest

from mindspore_serving import cli
from mindspore_serving.cli import commands, options
from mindspore_serving.cli.servables import llm_options
from mindspore_serving.cli.settings import (
    ENGINE,
    LANGUAGE,
    RUNTIMES,
    ServableSettings,
    ServeSettings,
)
from mindspore_serving.core.params import rows_of
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.llm.config import OPTIONS

COMMANDS = commands.parsers(commands.parser())
VALUES = {
    options.pairs: "zone=a",
    options.axes: "state=1",
}
VALUES_OF_FLAGS = {
    "--arguments": "size=1",
    "--inputs": "x=float32[1]",
    "--traffic": "1=90",
    "--shadow": "2=5",
}


def optional(command):
    return [
        action
        for action in COMMANDS[command]._actions
        if action.option_strings[-1:] not in ([], ["--help"], ["--help-all"])
    ]


def words(action, flag):
    if action.nargs == 0:
        return [flag]
    value = str(action.choices[0]) if action.choices else VALUES.get(action.type, "1")
    value = VALUES_OF_FLAGS.get(flag, value)
    return [flag, value]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_is_repeatable_or_refused_by_name(command, capsys):
    parser = COMMANDS[command]
    for action in optional(command):
        first, last = action.option_strings[0], action.option_strings[-1]
        twice = [*words(action, first), *words(action, last)]
        if isinstance(action, argparse._AppendAction):
            assert "repeatable" in action.help
            found = parser.parse_known_args([*positionals(parser), *twice])[0]
            assert getattr(found, action.dest) == [twice[1], twice[3]]
            continue
        assert "repeatable" not in (action.help or "")
        with pytest.raises(SystemExit) as caught:
            parser.parse_known_args([*positionals(parser), *twice])
        error = capsys.readouterr().err
        assert caught.value.code == 2
        assert f"argument {'/'.join(action.option_strings)}: given twice" in error


def positionals(parser):
    return ["x" for one in parser._actions if not one.option_strings and one.nargs is None]


@pytest.mark.parametrize(
    "given",
    [
        "--pinned-prompts A --pinned-prompts B",
        "--pinned-prompts=A --pinned-prompts=B",
        "--pinned A --pinned-prompts=B",
        "--pinned-prompts A --name a --pinned-prompts A",
    ],
)
def test_an_option_given_twice_in_any_form_ends_the_command(given, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["serve", *given.split()])
    assert caught.value.code == 2
    assert "argument --pinned-prompts: given twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("--limit head_timeout=1 --limit head-timeout=2", "--limit has head_timeout twice"),
        ("--llm-option dtype=f32 --llm-option dtype=f16", "--llm-option has dtype twice"),
        ("--engine-option a=1 --engine-option a=1", "--engine-option has a twice"),
        ("--adapter a=x --adapter a=y", "--adapter has a twice"),
        ("--node-labels zone=a,zone=b", "'zone=a,zone=b' has zone twice"),
        ("--batch-axis a=1,b=x", "'a=1,b=x': expected NAME=NUMBER,NAME=NUMBER"),
    ],
)
def test_a_name_given_twice_to_a_repeatable_option_is_refused(given, text, tmp_path, capsys):
    (tmp_path / "servable_config.py").touch()
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    try:
        status = cli.main(["serve", str(tmp_path), "--no-grpc", *given.split()])
    except SystemExit as error:
        status = error.code
    assert status == 2
    assert text in capsys.readouterr().err


def test_an_engine_given_twice_to_an_option_of_bench_is_refused(tmp_path, capsys):
    pythons = ["--engine-python", "ours=a", "--engine-python", "ours=b"]
    assert cli.main(["bench", str(tmp_path), "--engines", "ours", *pythons]) == 2
    assert "--engine-python has ours twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"), [("max_model_len", 64), ("runtime", "torch"), ("draft", "small")]
)
def test_an_option_that_llm_option_gives_too_is_refused(name, value):
    settings = ServeSettings(paths=(), **{name: value}, llm_option=(f"{name}=1",))
    with pytest.raises(InvalidInputs, match=f"--llm-option has {name}, which --"):
        llm_options(settings)


def test_each_option_of_language_models_reaches_the_engine():
    rows = rows_of(ServableSettings)
    names = [row.name_in(ENGINE) for row in rows.values() if row.group == LANGUAGE]
    runs_it = {"runtime", "engine", "engine_options"}
    assert {name for name in names if name} <= OPTIONS.keys() | runs_it
    options = llm_options(
        ServeSettings(
            paths=(), quantization="int4", adapter=("a=1",), engine_option=("n=2",), max_loras=3
        )
    )
    assert options == {
        "quantization": "int4",
        "adapters": {"a": "1"},
        "engine_options": {"n": 2},
        "max_loras": 3,
    }


def test_runtimes_of_the_command_line_are_those_of_the_catalog():
    runtimes = [name for name in RUNTIMES if name != "toy"]  # which other tests add
    assert runtimes == [
        "openvino",
        "torch",
        "mindspore",
        "mindir",
        "native",
        "combined",
        "transformers",
    ]


def test_loadable_adapters_reserve_room_if_the_runtime_has_adapters():
    settings = ServeSettings(paths=(), lora_directories=("loras",))
    assert llm_options(settings) == {"max_loras": 8}
    assert llm_options(replace(settings, runtime="mindir")) == {"runtime": "mindir"}
