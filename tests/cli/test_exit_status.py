"""Exit statuses: 2 for wrong arguments or a wrong configuration file, 1 for what fails."""

import io
from pathlib import Path

import pytest

from mindspore_serving import cli
from tests.cli.conftest import write_words
from tests.ports import free_port

WRONG = """
serve
serve words --nonsense
serve words --no-http --no-grpc
serve words --http-port x
serve words --http-port 70000 --no-grpc
serve words --limit max_nonsense=1
serve words --limit max_body
serve words --limit max_body=0
serve words --tls-cert server.pem
serve words --api-key short
serve words --api-key a-key-of-a-client --api-key-file keys
serve words --log-level loud
serve words --poll=-1
serve words --allow-origin http://example.org/path
serve words --max-msg-mb 0
serve words --front-ends 0
serve words --max-n 0
serve words --grpc-library grpcio
serve words --device-type other
serve words --num-parallel-workers=-1
serve words --versions x
serve words --versions 9
serve words --name a/b
serve words --heartbeat-timeout=-1
serve words --worker-address nowhere
serve words --launcher ray
serve words --allow-lora-loading nowhere
serve words --max-enqueued-requests 0
serve words --shutdown-timeout=-1
serve words --max-loaded=-1
serve words --trace-endpoint nowhere
serve words --llm-option dtype
serve words --llm-option dtype=f32
serve words --engine-option a=1
serve words --engine vllm
serve words --quantization int8
serve words --adapter a=b
serve words --draft small
serve model --engine other
serve model --engine upstream
serve model --adapter a
serve words --upstream http://127.0.0.1:1
serve --upstream http://127.0.0.1:1
serve --upstream nowhere --name other
serve --config wrong.yaml
serve --config no.yaml
config --config wrong.yaml
predict
predict nowhere words double {}
predict ftp://127.0.0.1:1 words double {}
predict 127.0.0.1:1 words double {
predict 127.0.0.1:1 words double 1
predict 127.0.0.1:1 words double {} --timeout 0
predict 127.0.0.1:1 words double {} --servable-version=-1
predict 127.0.0.1:1 words double {} --tls-cert client.pem
predict http://:x words double {}
chat
chat other://127.0.0.1 --prompt a
bench words
bench other://127.0.0.1
bench http://127.0.0.1:1 --concurrency 0
bench http://127.0.0.1:1 --rate 0
bench http://127.0.0.1:1 --spread 3
bench http://127.0.0.1:1 --profile other
bench http://127.0.0.1:1 --profile constant
bench http://127.0.0.1:1 --input-tokens 0
bench http://127.0.0.1:1 --engines ours
bench http://127.0.0.1:1 --engine-serve x
worker
worker --join nowhere
worker --join 127.0.0.1:1
status other://127.0.0.1
status words
status 127.0.0.1:1 --http 127.0.0.1:2
models other://127.0.0.1
load
load 127.0.0.1:1
load words http://127.0.0.1:1
load words --http other://127.0.0.1
unload
unload other://127.0.0.1 words
load-lora words
unload-lora
log-level loud
log-level other://127.0.0.1 info
log-level 127.0.0.1:1 loud
quantize
quantize model small --bits 3
convert
convert net.mindir net.onnx
doctor --nonsense
ascend-check --device other
ascend-check --primitives ropes
ascend-check --devices 65
other
"""
FAILS = """
serve nowhere
serve words --http-port {port} --no-grpc --host 192.0.2.1
serve words --api-key-file nowhere --no-grpc --http-port {port}
serve words --tls-cert nowhere --tls-key nowhere --no-grpc --http-port {port}
serve --config nowhere.yaml
predict http://127.0.0.1:{port} words double {{}}
chat http://127.0.0.1:{port} --prompt a
bench http://127.0.0.1:{port}
status http://127.0.0.1:{port}
models 127.0.0.1:{port}
load words --http 127.0.0.1:{port}
load 127.0.0.1:{port} words
log-level 127.0.0.1:{port}
quantize nowhere small
convert nowhere net.xml
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_words(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "model" / "model.safetensors").touch()
    (tmp_path / "wrong.yaml").write_text("other: 1\n")
    (tmp_path / "no.yaml").write_text("servables: [\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.delenv("MINDSPORE_SERVING_TOKEN", raising=False)


def status(words: str) -> object:
    try:
        return cli.main(words.split())
    except SystemExit as end:  # of argparse
        return end.code


@pytest.mark.parametrize("words", WRONG.strip().splitlines())
def test_wrong_arguments_are_status_2_and_a_line(
    words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert status(words) == 2
    told = capfd.readouterr().err
    assert told
    assert "Traceback" not in told


@pytest.mark.parametrize("words", FAILS.strip().splitlines())
def test_failures_end_with_status_1(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert status(words.format(port=free_port())) == 1
    assert "Traceback" not in capfd.readouterr().err
