"""An encrypted checkpoint over ranks on two machines, of which the second has no key: it gets that
from the model's worker, and nothing shows it."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("mindspore")

import mindspore
from safetensors.torch import load_file

from mindspore_serving import server
from mindspore_serving.llm.checkpoint.encrypted import KEY
from mindspore_serving.llm.parallel.messages import LoadRank
from mindspore_serving.server import ServableStartConfig
from tests.e2e.harness import children
from tests.e2e.test_rank_machines import OPTIONS, PROMPT, ask, command, hosts, machines
from tests.llm import chatty, checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.mindspore, pytest.mark.torch]
SECRET = b"of no use today!"
SHOWN = (SECRET, SECRET.hex().encode())  # what must be nowhere


def encrypt(source: Path, target: Path) -> None:
    """Let MindSpore write the weights of `source` into an encrypted file of `target`."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = load_file(source / "model.safetensors").items()
    parameters = [{"name": n, "data": mindspore.Tensor(tensor.numpy())} for n, tensor in tensors]
    mindspore.save_checkpoint(parameters, str(target / "model.ckpt"), enc_key=SECRET)


def test_ranks_elsewhere_load_encrypted_files_with_the_key_of_the_worker(
    start_cluster, monkeypatch
):
    monkeypatch.delenv(KEY, raising=False)
    made = start_cluster(local_slots=0)
    near, far = machines(made, 1, 1)
    plain = chatty.build(made.directory, "plain")
    encrypt(plain, made.directory / "chatty")
    options = {**OPTIONS, "runtime": "openvino", "pipeline_parallel": 2}
    server.start_servables(
        ServableStartConfig(
            str(made.directory), "chatty", rank_machines=2, dec_key=SECRET, llm_options=options
        )
    )
    status, answer = ask(made)
    assert (status, answer["choices"][0]["token_ids"]) == (
        200,
        list(checkpoints.greedy(plain, PROMPT, 12)),
    )
    (host,) = [*hosts(near), *hosts(far)]
    started = [host, *children(host)]
    assert len(started) == 2
    contents = [command(pid) + Path(f"/proc/{pid}/environ").read_bytes() for pid in started]
    contents += [path.read_bytes() for path in (made.directory / "serving_logs").iterdir()]
    contents += [machine.text.encode() for machine in (near, far)]
    contents += [made.calls.http_call("GET", path)[1] for path in ("/servables", "/metrics")]
    assert json.loads(contents[-2])["servables"]
    assert not [text for text in contents for secret in SHOWN if secret in text]


def test_a_command_to_load_does_not_show_its_key():
    assert SECRET.decode() not in repr(LoadRank("d", "openvino", {}, SECRET.decode()))
