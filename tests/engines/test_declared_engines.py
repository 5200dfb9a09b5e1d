"""A servable's own configuration names the engine of its language model."""

from pathlib import Path

import pytest

from tests.e2e.harness import config, serving, write_servable
from tests.engines.served import KINDS, PROMPT, Kind, environment, model

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SOURCE = """
from mindspore_serving.llm import SamplingParams
llm = register.declare_llm(
    {path!r},
    engine={engine!r},
    engine_options={own!r},
    params=SamplingParams(max_tokens=8),
    **{options!r},
)
def shout(text):
    return text.upper()
@register.register_method(output_names=["text"])
def ask(prompt):
    text = register.add_stage(llm, prompt, outputs_count=1)
    return register.add_stage(shout, text, outputs_count=1)
"""


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.engine)
def test_a_stage_is_a_model_behind_another_engine(kind: Kind, stopped: Path) -> None:
    python = environment(kind)
    path, own = str(model(kind, stopped)), kind.engine_options
    source = SOURCE.format(path=path, engine=kind.engine, own=own, options=kind.llm_options)
    write_servable(stopped, "asker", source)
    with serving(stopped, config(stopped, "asker", python=python)) as calls:
        (answer,) = calls.client("asker", "ask").infer({"prompt": PROMPT})
        assert answer["text"]
        assert answer["text"] == answer["text"].upper()
