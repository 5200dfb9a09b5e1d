"""Packages that stand in for vLLM and its plugins for Ascend: no vLLM, no device.

The `vllm` here prints the lines of the file SCRIPT, or waits or ends where it says so, and then
serves OpenAI's API.  What is tested is our side: the choice of the plugin, its command line, what
is reported.
"""

import json
import sys
from pathlib import Path

import msgspec

from tests.e2e.interpreters import light_environment

SCRIPT = "STAND_IN_SCRIPT"  # environment variable with the path of the script
SEEN = "STAND_IN_SEEN"  # ... of the file for the command line and the environment
VLLM = """
import http.server, json, os, sys, time

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        model = {"id": option("served-model-name"), "max_model_len": 77}
        self.send(b"" if self.path == "/health" else json.dumps({"data": [model]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers["authorization"] != "Bearer " + os.environ["VLLM_API_KEY"]:
            return self.send(b"{}", 401)
        died = os.environ["STAND_IN_SEEN"] + ".died"
        if body["prompt"] == "die" and not os.path.exists(died):
            open(died, "w").close()
            print("(Worker_TP1 pid=12) ERROR RuntimeError: EL0005: it is gone", flush=True)
            os._exit(3)
        text = f"{body['temperature']} of {os.getpid()}"
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        self.send(f"data: {json.dumps({'choices': [choice]})}\\n\\ndata: [DONE]\\n\\n".encode())

    def send(self, data, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass

def option(name):
    return sys.argv[sys.argv.index("--" + name) + 1]

def main():
    seen = {"argv": sys.argv, "variables": dict(os.environ)}
    with open(os.environ["STAND_IN_SEEN"], "w") as file:
        json.dump(seen, file)
    for line in open(os.environ["STAND_IN_SCRIPT"]):
        if line.startswith("wait "):
            while not os.path.exists(line[5:].strip()):
                time.sleep(0.01)
        elif line.startswith("exit "):
            os._exit(int(line[5:]))
        else:
            print(line, end="", flush=True)
    http.server.ThreadingHTTPServer(("127.0.0.1", int(option("port"))), Answers).serve_forever()

if __name__ == "__main__":
    main()
"""
RUN = """
import runpy, sys
if __name__ == "__main__":
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
EMPTY = "__init__.py"
MODULES = ("entrypoints/cli/main.py", "entrypoints/openai/api_server.py")
FILES: dict[str, dict[str, str]] = {
    "vllm": {EMPTY: "", **dict.fromkeys(MODULES, VLLM)},
    "vllm-ascend": {EMPTY: ""},
    "vllm-mindspore": {EMPTY: "", "entrypoints/__main__.py": RUN},
}


def write_packages(directory: Path, *names: str) -> None:
    """Write what stands in for the packages `names`, each of version 0.23.0."""
    for name in names:
        for path, text in FILES[name].items():
            _write(directory / name.replace("-", "_") / path, text)
        metadata = directory / f"{name.replace('-', '_')}-0.23.0.dist-info" / "METADATA"
        _write(metadata, f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.23.0\n")


def environment_with(directory: Path, *names: str) -> str:
    """The interpreter of a new environment with the packages `names`, and with ours."""
    python = light_environment(directory)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = directory / "lib" / version / "site-packages"
    (packages / "ours.pth").write_text(str(Path(msgspec.__file__).parents[1]))
    write_packages(packages, *names)
    return str(python)


def checkpoint(directory: Path) -> Path:
    """A directory that looks like a model's; nothing of it is computed."""
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    _write(directory / "config.json", json.dumps(config))
    _write(directory / "generation_config.json", '{"temperature": 0.25}')
    return directory


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
