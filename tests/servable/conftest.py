"""Servables written to a temporary directory, as a user writes them."""

import textwrap
from pathlib import Path

import pytest

from mindspore_serving.servable import loader, model, servable_method

HEAD = """\
import numpy as np
from mindspore_serving.server import distributed, register

def cast(x1, x2):
    return x1.astype(np.float32), x2.astype(np.float32)

def scale(y):
    return y * 2

def batch(instances):
    for instance in instances:
        yield sum(instance)

"""
MODEL = 'model = register.declare_model("add.mindir", "MindIR")\n'


class Servable:
    """A directory `name` in `directory`; `write` makes its servable_config.py."""

    def __init__(self, directory, name):
        self.directory, self.name = str(directory), name
        self.path = Path(directory) / name

    def write(self, body, head=HEAD + MODEL):
        self.path.mkdir(exist_ok=True)
        (self.path / "servable_config.py").write_text(head + textwrap.dedent(body))
        return self

    def add(self, *files):
        for file in files:
            (self.path / file).parent.mkdir(parents=True, exist_ok=True)
            (self.path / file).write_bytes(b"model")
        return self

    def load(self):
        return loader.load(self.directory, self.name)


@pytest.fixture
def servable(tmp_path):
    return Servable(tmp_path, "tiny")


@pytest.fixture
def make_servable(tmp_path):
    return lambda name: Servable(tmp_path, name)


@pytest.fixture
def declare(servable):
    """Load a servable_config.py of the given text, after HEAD and a model; its declaration."""
    return lambda body, head=HEAD + MODEL: servable.write(body, head).load()


@pytest.fixture
def runner():
    """Bind a function as what Model.call runs, for one test."""
    yield model.bind_runner
    model.bind_runner(None)


@pytest.fixture
def bind_method_runner():
    yield servable_method.bind_runner
    servable_method.bind_runner(None)
