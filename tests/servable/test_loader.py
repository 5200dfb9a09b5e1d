import importlib
import json
import os
import sys

import pytest

from mindspore_serving.errors import InvalidInputs, StartError
from mindspore_serving.servable import loader

SAME = """
from mindspore_serving.server import register

@register.register_method("y")
def same(x):
    return x
"""


@pytest.fixture(autouse=True)
def _clean_path():
    before = list(sys.path)
    yield
    sys.path[:] = before


def test_a_servable_gets_its_own_declaration(make_servable):
    first = make_servable("first").write(SAME, "").load()
    second = make_servable("second").write(SAME.replace("same", "other"), "").load()
    assert (first.name, list(first.methods)) == ("first", ["same"])
    assert (second.name, list(second.methods)) == ("second", ["other"])


@pytest.mark.parametrize("line", ["from .steps import twice", "from tiny.steps import twice"])
def test_siblings_can_be_imported(servable, line):
    servable.write(SAME + line + "\nassert twice(2) == 4\n", "")
    (servable.path / "steps.py").write_text("def twice(x):\n    return x * 2\n")
    assert servable.load().methods


def test_a_package_of_the_user_is_initialised(servable):
    servable.write(SAME + "from . import READY\nassert READY\n", "")
    (servable.path / "__init__.py").write_text("READY = True\n")
    assert servable.load().methods


def test_modules_beside_the_servable_can_be_imported(servable):
    servable.write(SAME + "import beside_it\nassert beside_it.VALUE == 3\n", "")
    (servable.path.parent / "beside_it.py").write_text("VALUE = 3\n")
    assert servable.load().methods
    del sys.modules["beside_it"]


def test_an_imported_module_may_declare(servable):
    servable.write("from . import models\n", "")
    (servable.path / "models.py").write_text(
        SAME + 'register.declare_model("a.mindir", "MindIR")\n'
    )
    declaration = servable.load()
    assert list(declaration.models) == ["a.mindir"]
    assert list(declaration.methods) == ["same"]


def test_a_second_load_runs_everything_again(servable):
    servable.write(SAME + "from . import steps\n", "")
    steps = servable.path / "steps.py"
    steps.write_text(
        'from mindspore_serving.server import register as r\nr.declare_model("a", "OM")\n'
    )
    assert list(servable.load().models) == ["a"]
    assert list(servable.load().models) == ["a"]


@pytest.mark.parametrize("name", ["servable_config.py", "steps.py", "__init__.py"])
def test_a_file_that_is_changed_in_the_same_second_is_read_again(servable, monkeypatch, name):
    """Python's bytecode would be that of the earlier file, as both have one length and time."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    servable.write(SAME + "from . import steps\n", "")
    (servable.path / "steps.py").write_text("")
    path = servable.path / name
    before = path.read_text() if path.exists() else ""
    line = 'from mindspore_serving.server import register as r\nr.declare_model("{}", "OM")\n'
    for model in ("a", "b"):
        path.write_text(before + line.format(model))
        os.utime(path, (10**9, 10**9))
        assert list(servable.load().models) == [model]


def test_the_same_name_in_another_directory_is_another_servable(tmp_path):
    for place in ("one", "two"):
        path = tmp_path / place / "tiny"
        path.mkdir(parents=True)
        (path / "servable_config.py").write_text(SAME.replace("same", place))
    assert list(loader.load(str(tmp_path / "one"), "tiny").methods) == ["one"]
    assert list(loader.load(str(tmp_path / "two"), "tiny").methods) == ["two"]


@pytest.mark.parametrize("name", ["json", "torch", "mindspore_serving", "register", "queue"])
def test_a_servable_may_be_called_like_a_module(make_servable, name):
    servable = make_servable(name)
    (servable.path).mkdir()
    (servable.path / "steps.py").write_text("VALUE = 4\n")
    servable.write(SAME + "from .steps import VALUE\nimport json\nassert json.dumps(1)\n", "")
    assert servable.load().name == name
    assert sys.modules["json"] is json
    importlib.import_module("queue").Queue()


@pytest.mark.parametrize("name", ["resnet-50", "v1.2", "3d"])
def test_a_name_need_not_be_an_identifier(make_servable, name):
    servable = make_servable(name)
    servable.path.mkdir()
    (servable.path / "steps.py").write_text("VALUE = 4\n")
    servable.write(SAME + "from .steps import VALUE\n", "")
    assert list(servable.load().methods) == ["same"]


def test_an_installed_module_wins_over_a_module_beside_the_servable(servable):
    (servable.path.parent / "decimal.py").write_text("raise RuntimeError('hidden')\n")
    assert servable.write(SAME + "import decimal\ndecimal.Decimal(1)\n", "").load().methods


@pytest.mark.parametrize("name", ["", "../tiny", ".tiny", "a/b"])
def test_a_bad_name_is_refused(tmp_path, name):
    with pytest.raises(InvalidInputs, match="Parameter 'servable_name' should"):
        loader.load(str(tmp_path), name)


def test_a_missing_file_is_named(servable):
    with pytest.raises(StartError, match=r"import tiny.servable_config failed, there is no file"):
        servable.load()


def failure(servable, body):
    with pytest.raises(StartError) as caught:
        servable.write(body, "").load()
    return str(caught.value)


def test_an_error_of_the_user_has_its_text_type_file_and_line(servable):
    text = failure(servable, "a = 1\nb = {}['key']\n")
    path = servable.path / "servable_config.py"
    assert text == f"import tiny.servable_config failed, 'key' (KeyError, {path}, line 2)"


def test_the_innermost_line_of_user_code_is_named(servable):
    servable.path.mkdir()
    (servable.path / "steps.py").write_text("import json\n\ndef parse():\n    json.loads('{')\n")
    text = failure(servable, "from .steps import parse\nparse()\n")
    assert text.endswith(f"(JSONDecodeError, {servable.path / 'steps.py'}, line 4)")


def test_a_syntax_error_is_placed(servable):
    text = failure(servable, "a = 1\n\nb = (\n")
    assert f"(SyntaxError, {servable.path / 'servable_config.py'}, line 3)" in text


def test_a_missing_module_is_named(servable):
    text = failure(servable, "import no_such_module_here\n")
    assert "No module named 'no_such_module_here' (ModuleNotFoundError" in text


def test_a_refused_declaration_is_placed(servable):
    text = failure(servable, SAME + 'register.declare_model("a", "caffe")\n')
    assert "model format can only be" in text
    assert text.endswith(f"{servable.path / 'servable_config.py'}, line 7)")


def test_a_script_that_exits_is_an_error(servable):
    assert "(SystemExit, " in failure(servable, "import sys\nsys.exit('bye')\n")


def test_a_failed_load_can_be_repaired(servable):
    failure(servable, "from . import steps\n")
    (servable.path / "steps.py").write_text(SAME)
    assert list(servable.load().methods) == ["same"]


def test_a_servable_has_a_method(servable):
    text = failure(servable, "from mindspore_serving.server import register\n")
    assert text.startswith("There is no method registered for servable 'tiny'")


def test_after_loading_nothing_can_be_declared(servable):
    declaration = servable.write(SAME, "").load()
    module = sys.modules["tiny.servable_config"]
    with pytest.raises(RuntimeError, match="Failed to obtain the directory"):
        module.register.declare_model("late.mindir", "MindIR")
    assert declaration.models == {}


def test_a_file_that_is_no_source_is_an_error_without_a_line(servable):
    text = failure(servable, "\0")
    assert text.startswith("import tiny.servable_config failed, source code string cannot contain")
