"""Roles that a servable cannot have: the start fails, and says why."""

import pytest

from mindspore_serving import server
from tests.e2e.harness import config, write_servable
from tests.llm import checkpoints

pytestmark = pytest.mark.e2e

ROLES = {"prefill": 1, "decode": 1}


@pytest.fixture(autouse=True)
def stopped():
    yield
    server.stop()


def test_roles_of_a_servable_without_language_model_are_refused(tmp_path):
    source = """
@register.register_method(output_names=["y"])
def double(x):
    return register.add_stage(lambda x: x * 2, x, outputs_count=1)
"""
    write_servable(tmp_path, "double", source)
    options = config(tmp_path, "double", roles=ROLES, num_parallel_workers=0)
    with pytest.raises(RuntimeError, match="roles is set, but servable 'double' is no language"):
        server.start_servables([options])


def test_roles_of_a_model_without_keys_and_values_are_refused(tmp_path):
    built = checkpoints.build("mamba2", tmp_path)
    options = server.ServableStartConfig(
        str(tmp_path), built.name, roles=ROLES, llm_options={"dtype": "f32"}
    )
    with pytest.raises(RuntimeError, match="roles is set, but the model has states and no keys"):
        server.start_servables([options])
