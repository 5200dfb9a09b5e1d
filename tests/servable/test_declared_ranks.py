"""The ranks of a language model, as read from a servable_config.py that is not run."""

from pathlib import Path

import pytest

from mindspore_serving.servable.declared_ranks import declared_ranks


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
def test_literals_of_declare_llm_say_how_many_there_are(tmp_path: Path, source, expected):
    file = tmp_path / "servable_config.py"
    file.write_text(source)
    assert declared_ranks(str(file)) == expected


def test_without_the_file_there_is_one(tmp_path: Path):
    assert declared_ranks(str(tmp_path / "servable_config.py")) == 1
