import base64
import io

import pytest

from tests import printed

pytestmark = [pytest.mark.mindspore, pytest.mark.e2e, pytest.mark.slow]

# MindSpore itself on the exported model, one picture at a time.
REFERENCE = """
import os
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"
import json
import mindspore as ms, numpy as np
from PIL import Image
net = ms.nn.GraphCell(ms.load(sys.argv[1]))
best = []
for path in sys.argv[2:]:
    pixels = np.array(Image.open(path).convert("RGB").resize((224, 224))).astype("float32")
    for channel, (mean, std) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))):
        pixels[:, :, channel] = (pixels[:, :, channel] / 255 - mean) / std
    x = np.ascontiguousarray(np.moveaxis(pixels, 2, 0)[None])
    logits = net(ms.Tensor(x)).asnumpy()[0]
    best.append(sorted(range(1000), key=lambda i: -logits[i])[:5])
print(json.dumps(best))
"""


@pytest.fixture(scope="module")
def resnet50(run_example):
    return run_example("resnet50", "resnet50")


@pytest.fixture(scope="module")
def pictures():
    from PIL import Image
    from sklearn.datasets import load_sample_images

    files = []
    for pixels in load_sample_images().images:
        for cut, kind in ((pixels, "JPEG"), (pixels[:200, :200], "PNG"), (pixels[200:], "PNG")):
            buffer = io.BytesIO()
            Image.fromarray(cut).save(buffer, kind)
            files.append(buffer.getvalue())
    return files


@pytest.fixture(scope="module")
def expected(resnet50, pictures, reference):
    """The five best classes of each picture, by MindSpore itself."""
    paths = []
    for index, content in enumerate(pictures):
        path = resnet50.directory / f"picture{index}"
        path.write_bytes(content)
        paths.append(str(path))
    model = resnet50.directory / "resnet50" / "1" / "resnet50.mindir"
    best = reference(REFERENCE, str(model), *paths)
    assert len({tuple(five) for five in best}) == len(pictures), "pictures must be told apart"
    return best


@pytest.mark.parametrize("method", ["classify_top5", "classify_call", "classify_call_batch"])
def test_the_top_five_are_mindspores_own(resnet50, pictures, expected, method):
    answers = resnet50.client(method).infer([{"image": content} for content in pictures])
    assert [answer["classes"].tolist() for answer in answers] == expected
    assert [answer["label"] for answer in answers] == [
        " ".join(f"class_{index:03}" for index in five) for five in expected
    ]


def test_the_built_in_argmax_finds_the_best(resnet50, pictures, expected):
    answers = resnet50.client("classify_top1").infer([{"image": content} for content in pictures])
    assert [int(answer["class_id"]) for answer in answers] == [five[0] for five in expected]


def test_rest_answers_the_same(resnet50, pictures, expected):
    encoded = [{"image": {"b64": base64.b64encode(content).decode()}} for content in pictures]
    answers = resnet50.post("classify_top5", encoded)
    assert [answer["classes"] for answer in answers] == expected


@pytest.mark.parametrize("method", ["classify_top5", "classify_call_batch"])
def test_a_broken_picture_in_a_batch_fails_alone(resnet50, pictures, expected, method):
    contents = [pictures[0], b"broken", pictures[2]]
    answers = resnet50.client(method).infer([{"image": content} for content in contents])
    assert answers[0]["classes"].tolist() == expected[0]
    assert "cannot identify image" in answers[1]["error"]
    assert answers[2]["classes"].tolist() == expected[2]


def test_the_client_prints_the_same_for_every_way(resnet50, expected):
    lines = resnet50.run_client().splitlines()
    assert len(lines) == 20
    assert lines[0] == lines[4].replace("classify_call", "classify_top5")
    assert lines[0].endswith(f"{expected[0]}")
    assert lines[12] == f"gRPC classify_top1, temple whole JPEG: {expected[0][0]}"


def test_the_printed_commands_work(tmp_path, resnet50):
    printed.paste_all(resnet50.printed_commands(), tmp_path)
