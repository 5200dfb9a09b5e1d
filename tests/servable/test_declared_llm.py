"""The ranks of a language model, as read from a servable_config.py that is not run."""

from pathlib import Path

import pytest

from mindspore_serving.servable.declared_llm import declared_options, declared_ranks


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("register.declare_llm('m')", 1),
        ("llm = register.declare_llm('m', tensor_parallel=2, pipeline_parallel=3)", 6),
        ("from mindspore_serving.server.register import declare_llm\ndeclare_llm(\n"
         "    'm', pipeline_parallel=4,\n)", 4),
        ("RANKS = 3\nif True:\n    declare_llm('m', tensor_parallel=RANKS)", 3),
        ("options = {'tensor_parallel': 2}\ndeclare_llm('m', **options, dtype='f32')", 2),
        ("import os\ndeclare_llm('m', tensor_parallel=int(os.environ['N']), pipeline_parallel=2)",
         2),
        ("raise SystemExit\ndeclare_llm('m', tensor_parallel=2)", 2),
        ("declare_llm('m', tensor_parallel=2)\ndeclare_llm('m', tensor_parallel=4)", 4),
        ("declare_llm('m', tensor_parallel='two', pipeline_parallel=-3)", 1),
        ("declare_model('m', tensor_parallel=2)", 1),
        ("declare_llm(", 1),
        ("declare_llm('m', tensor_parallel=2)\0", 1),
    ],
)  # fmt: skip
def test_literals_of_declare_llm_give_the_number_of_ranks(tmp_path: Path, source, expected):
    file = tmp_path / "servable_config.py"
    file.write_text(source)
    assert declared_ranks(str(file))[0] == expected


def test_a_missing_file_has_a_single_rank_and_no_options(tmp_path: Path):
    path = str(tmp_path / "servable_config.py")
    assert (declared_ranks(path), declared_options(path)) == ((1, 1), [])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("declare_llm('m', params=P, dtype='f32')", ({"dtype"}, {"dtype": "f32"}, True)),
        ("N = 2\nx = declare_llm('m', max_loras=N)", ({"max_loras"}, {}, False)),
        ("declare_llm('m', a=1, **more)", ({"a"}, {"a": 1}, False)),
        ("if x:\n    declare_llm('m', a=1)", None),
        ("def f():\n    declare_llm('m', a=1)", None),
        ("other('m', a=1)", None),
    ],
)
def test_options_of_calls_at_the_top_level_are_read(tmp_path: Path, source, expected):
    file = tmp_path / "servable_config.py"
    file.write_text(source)
    calls = [(set(one.names), one.literals, one.is_literal) for one in declared_options(str(file))]
    assert calls == ([expected] if expected else [])
