import json
import os

import pytest

from mindspore_serving.core.graph import Stage, StageKind
from mindspore_serving.core.tasks import TASKS, TaskSpec, split_architecture, task_of
from mindspore_serving.errors import StartError

DECLARED = """
model = register.declare_hf_model("bert", truncate=True)

@register.register_method(output_names=["label", "score"])
def classify(review):
    return register.add_stage(model, review, outputs_count=2)
"""


@pytest.fixture
def bert(servable):
    """Where its directory is; `architectures` is all that a declaration reads."""
    (servable.path / "bert").mkdir(parents=True)
    config = {"architectures": ["BertForSequenceClassification"]}
    (servable.path / "bert" / "config.json").write_text(json.dumps(config))
    return os.path.abspath(servable.path / "bert")


def test_a_model_is_a_stage_that_takes_and_gives_the_first_of_its_task(declare, bert):
    declaration = declare(DECLARED)
    spec = TaskSpec(bert, "text-classification", "", {"truncate": True})
    assert declaration.tasks == {bert: spec}
    (stage,) = declaration.methods["classify"].stages
    assert stage == Stage(StageKind.TASK, bert, (0,), (1, 2), "Model of text-classification")


def test_a_model_alone_has_the_method_predict(declare, bert):
    method = declare('register.declare_hf_model("bert", runtime="torch")').methods["predict"]
    task = TASKS["text-classification"]
    assert (method.inputs, method.outputs) == (task.inputs, task.outputs)
    assert method.defaults == {"text_pair": "", "top_k": "", "truncate": ""}


def test_features_can_be_taken_of_any_model(declare, bert):
    declaration = declare('register.declare_hf_model("bert", task="feature-extraction")')
    assert declaration.methods["predict"].outputs == ("embedding",)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('register.declare_hf_model("bert", task="ranking")', "task is 'ranking', expected one of"),
        ('register.declare_hf_model(3)', "Parameter 'path'"),
        ('register.declare_hf_model("nowhere")', "has architecture '', expected one that ends"),
        (
            'register.declare_hf_model("bert")\nregister.declare_hf_model("bert")',
            "the model 'bert' has already been declared",
        ),
        (
            DECLARED.replace("outputs_count=2", "outputs_count=5"),
            "and returns the first of label, score, labels",
        ),
        (DECLARED.replace("review, o", "*[review] * 5, o"), "5 input.s. and 2 output"),
        (DECLARED.replace('declare_hf_model("bert", truncate=True)', 'HFModel("x")'), "declared"),
    ],
    ids=range(7),
)  # fmt: skip
def test_wrong_declarations_of_models_are_refused(declare, bert, body, text):
    with pytest.raises(StartError, match=text):
        declare(body)


@pytest.mark.parametrize(
    ("architecture", "family", "task"),
    [
        ("BertForSequenceClassification", "Bert", "text-classification"),
        ("XLMRobertaForTokenClassification", "XLMRoberta", "token-classification"),
        ("DistilBertForMaskedLM", "DistilBert", "fill-mask"),
        ("ViTForImageClassification", "ViT", "image-classification"),
        ("MPNetModel", "MPNet", "feature-extraction"),
        ("BertForQuestionAnswering", "BertForQuestionAnswering", ""),
        ("", "", ""),
    ],
)
def test_the_end_of_an_architectures_name_is_its_task(architecture, family, task):
    assert split_architecture(architecture)[0] == family
    assert task_of(architecture) == task
