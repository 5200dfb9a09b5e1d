"""The directory of a Hugging Face model that cannot be served, as a server refuses it."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from mindspore_serving import server
from mindspore_serving.errors import StartError
from tests.e2e.harness import config
from tests.tasks import checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.torch]


def test_a_head_that_is_not_served_is_named(tmp_path: Path) -> None:
    path = checkpoints.build(tmp_path / "answers", "bert", "ForQuestionAnswering")
    assert (path / "model.safetensors").exists()
    try:
        with pytest.raises(StartError) as raised:
            server.start_servables([config(tmp_path, "answers")])
    finally:
        server.stop()
    text = str(raised.value)
    assert "BertForQuestionAnswering" in text
    assert "models that end with ForSequenceClassification (text-classification)" in text
