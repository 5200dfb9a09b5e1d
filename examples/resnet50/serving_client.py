"""Send pictures as JPEG and PNG to the four methods of resnet50."""

import base64
import http.client
import io
import json
import os

from PIL import Image
from sklearn.datasets import load_sample_images

from mindspore_serving.client import Client

GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")


def pictures() -> dict[str, bytes]:
    """Two photographs that come with scikit-learn, whole and cut, as files."""
    files = {}
    for name, pixels in zip(("temple", "flower"), load_sample_images().images, strict=True):
        for part, cut, kind in (("whole", pixels, "JPEG"), ("part", pixels[:200, :200], "PNG")):
            buffer = io.BytesIO()
            Image.fromarray(cut).save(buffer, kind)
            files[f"{name} {part} {kind}"] = buffer.getvalue()
    return files


def call_grpc(files: dict[str, bytes]) -> None:
    instances = [{"image": content} for content in files.values()]
    for method in ("classify_top5", "classify_call", "classify_call_batch"):
        answers = Client(GRPC, "resnet50", method).infer(instances)
        for name, answer in zip(files, answers, strict=True):
            print(f"gRPC {method}, {name}: {answer['label']} {answer['classes'].tolist()}")
    waiting = Client(GRPC, "resnet50", "classify_top1").infer_async(instances)
    for name, answer in zip(files, waiting.result(), strict=True):
        print(f"gRPC classify_top1, {name}: {int(answer['class_id'])}")


def call_rest(files: dict[str, bytes]) -> None:
    encoded = [{"image": {"b64": base64.b64encode(f).decode()}} for f in files.values()]
    connection = http.client.HTTPConnection(HTTP)
    body = json.dumps({"instances": encoded})
    connection.request("POST", "/model/resnet50:classify_top5", body)
    answers = json.loads(connection.getresponse().read())["instances"]
    for name, answer in zip(files, answers, strict=True):
        print(f"REST classify_top5, {name}: {answer['label']}")


if __name__ == "__main__":
    call_grpc(pictures())
    call_rest(pictures())
