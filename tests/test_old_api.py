"""Start-up scripts, servables and clients as tutorials of versions 1.1 to 1.4 showed them.

They run unchanged but for the ports, which are replaced in the text by free ones.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mindspore_serving import log, master, server, worker
from mindspore_serving.client import Client
from tests.cli.commands import Command, run
from tests.e2e.harness import eventually, workers
from tests.ports import free_port
from tests.waiting import PATIENCE

EXPORT = """
import sys
import mindspore as ms
import numpy as np
from mindspore import nn, ops

class Add(nn.Cell):
    def construct(self, x1, x2):
        return ops.add(x1, x2)

for rows in (1, 2):
    zeros = ms.Tensor(np.zeros((rows, 2), np.float32))
    path = f"{sys.argv[1]}/add_{rows}"
    ms.export(Add(), zeros, zeros, file_name=path, file_format="MINDIR")
"""

ADD_1_1 = """
import numpy as np
from mindspore_serving.worker import register

def to_float(x1, x2):
    return x1.astype(np.float32), x2.astype(np.float32)

register.declare_servable(servable_file="add.mindir", model_format="MindIR", with_batch_dim=False)

@register.register_method(output_names=["y"])
def add_common(x1, x2):
    y = register.call_servable(x1, x2)
    return y

@register.register_method(output_names=["y"])
def add_cast(x1, x2):
    x1, x2 = register.call_preprocess(to_float, x1, x2)
    y = register.call_servable(x1, x2)
    return y
"""

BATCHED_1_2 = """
import numpy as np
from mindspore_serving.worker import register

def to_float(instances):
    for x1, x2 in instances:
        yield x1.astype(np.float32), x2.astype(np.float32)

def to_text(instances):
    for (y,) in instances:
        yield str(y.tolist()), len(instances)

register.declare_servable(servable_file="add.mindir", model_format="MindIR", with_batch_dim=True)

@register.register_method(output_names=["text", "count"])
def add_text(x1, x2):
    x1, x2 = register.call_preprocess_pipeline(to_float, x1, x2)
    y = register.call_servable(x1, x2)
    text, count = register.call_postprocess_pipeline(to_text, y)
    return text, count
"""

SERVER_1_1 = """
import os
import sys
from mindspore_serving import master
from mindspore_serving import worker

def start():
    servable_dir = os.path.dirname(os.path.realpath(sys.argv[0]))
    worker.start_servable_in_master(servable_dir, "add", device_id=0)
    master.start_grpc_server("127.0.0.1", 5500)
    master.start_restful_server("127.0.0.1", 1500)

if __name__ == "__main__":
    start()
"""

CLIENT_1_1 = """
import numpy as np
from mindspore_serving.client import Client

client = Client("127.0.0.1", 5500, "add", "add_cast")
instances = [{"x1": np.full((1, 2), k, np.int32), "x2": np.ones((1, 2), np.int32)} for k in (1, 2)]
for result in client.infer(instances):
    print(result["y"].tolist())
"""

MASTER_AND_WORKER_1_2 = """
from mindspore_serving import master, worker

master.start_grpc_server("127.0.0.1", 5500)
master.start_master_server("127.0.0.1", 6100)
worker.start_servable(".", "words", master_ip="127.0.0.1", master_port=6100,
                      worker_ip="127.0.0.1", worker_port=6200)
"""

WORKER_ALONE_1_2 = """
from mindspore_serving import worker

worker.start_servable("/models", "lenet", device_id=1, master_ip="10.0.0.1", master_port=6500)
"""

WORDS = """
from mindspore_serving.worker import register

@register.register_method(output_names=["same"])
def echo(text):
    return text
"""

SERVER_1_3 = """
import os
import sys
from mindspore_serving import server

def start():
    servable_dir = os.path.dirname(os.path.realpath(sys.argv[0]))
    config = server.ServableStartConfig(servable_directory=servable_dir, servable_name="add",
                                        device_ids=(0, 1))
    server.start_servables(config)
    server.start_grpc_server("127.0.0.1:5500")
    server.start_restful_server("127.0.0.1:1500")

if __name__ == "__main__":
    start()
"""

PIPELINE_1_3 = """
from mindspore_serving.server import register

adding = register.PipelineServable(servable_name="add", method="add_cast", version_number=0)

@register.register_pipeline(output_names=["total"])
def add_three(x1, x2, x3):
    return adding.run(adding.run(x1, x2), x3)
"""

PIPELINE_SERVER_1_3 = """
from mindspore_serving import server

server.start_servables((server.ServableStartConfig(".", "add", device_ids=0),
                        server.ServableStartConfig(".", "three", device_ids=0)))
server.start_grpc_server("127.0.0.1:5500")
server.start_restful_server("127.0.0.1:1500")
"""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """add_1.mindir and add_2.mindir: y = x1 + x2 on float32 of shapes (1, 2) and (2, 2)."""
    directory = tmp_path_factory.mktemp("models")
    script = directory / "export.py"
    script.write_text(EXPORT)
    done = run([sys.executable, str(script), str(directory)], directory)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def write(tmp_path: Path, models: Path) -> Callable[..., None]:
    """write(name, source, rows): a servable that adds `rows` rows."""

    def write_one(name: str, source: str, rows: int) -> None:
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "servable_config.py").write_text(source)
        (tmp_path / name / "1" / "add.mindir").symlink_to(models / f"add_{rows}.mindir")

    return write_one


class Old:
    """A script in a directory, with free ports in place of those it prints."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = {"5500": str(free_port()), "1500": str(free_port()), "6100": str(free_port())}
        self.command: Command | None = None

    def place(self, name: str, source: str) -> list[str]:
        for old, new in self.ports.items():
            source = source.replace(old, new)
        (self.directory / name).write_text(source)
        return [sys.executable, name]

    def start(self, source: str, sign: str = "RESTful server start success") -> Command:
        self.command = Command(self.place("server.py", source), self.directory)
        self.command.says(sign)
        return self.command

    def client(self, servable: str, method: str) -> Client:
        return Client("127.0.0.1:" + self.ports["5500"], servable, method)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Old]:
    script = Old(tmp_path)
    yield script
    if script.command is not None:
        script.command.end()


@pytest.mark.mindspore
@pytest.mark.e2e
@pytest.mark.slow
def test_the_add_example_of_1_1_runs_with_its_client(write, old):
    write("add", ADD_1_1, rows=1)
    script = old.start(SERVER_1_1)
    done = run(old.place("client.py", CLIENT_1_1), old.directory)
    assert done.stdout.splitlines() == ["[[2.0, 2.0]]", "[[3.0, 3.0]]"], done.stderr
    for old_name, new_name in (
        ("worker.start_servable_in_master", "server.start_servables"),
        ("master.start_grpc_server", "server.start_grpc_server"),
        ("master.start_restful_server", "server.start_restful_server"),
    ):
        assert f"'{old_name}' is deprecated from version 1.3.0" in script.text
        assert f"use '{new_name}' instead" in script.text


@pytest.mark.mindspore
@pytest.mark.e2e
@pytest.mark.slow
def test_the_start_script_of_1_3_runs_two_replicas(write, old):
    write("add", ADD_1_1.replace("mindspore_serving.worker", "mindspore_serving.server"), rows=1)
    script = old.start(SERVER_1_3)
    assert len(workers(script.pid)) == 2
    x1, x2 = np.array([[1, 2]], np.float32), np.array([[10, 20]], np.float32)
    with old.client("add", "add_common") as client:
        results = client.infer([{"x1": x1 * k, "x2": x2} for k in range(8)])
    assert [one["y"].tolist() for one in results] == [[[k + 10, 2 * k + 20]] for k in range(8)]


@pytest.mark.mindspore
@pytest.mark.e2e
@pytest.mark.slow
def test_the_pipeline_stages_of_1_2_get_batches(write, old):
    write("add", BATCHED_1_2, rows=2)
    old.start(SERVER_1_1)
    instances = [{"x1": np.full(2, k), "x2": np.ones(2)} for k in range(3)]
    with old.client("add", "add_text") as client:
        results = client.infer(instances)
    assert [one["text"] for one in results] == ["[1.0, 1.0]", "[2.0, 2.0]", "[3.0, 3.0]"]
    assert max(int(one["count"]) for one in results) == 2  # the model's batch size


@pytest.mark.mindspore
@pytest.mark.e2e
@pytest.mark.slow
def test_a_pipeline_of_1_3_calls_another_servable(write, old):
    write("add", ADD_1_1, rows=1)
    write("three", PIPELINE_1_3, rows=1)
    old.start(PIPELINE_SERVER_1_3)
    row = np.array([[1, 2]], np.float32)
    with old.client("three", "add_three") as client:
        (result,) = client.infer({"x1": row, "x2": 10 * row, "x3": 100 * row})
    assert result["total"].tolist() == [[111, 222]]


@pytest.mark.e2e
def test_master_and_worker_of_a_process_share_its_server(tmp_path, old):
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "servable_config.py").write_text(WORDS)
    script = old.start(MASTER_AND_WORKER_1_2, sign="gRPC server start success")
    with old.client("words", "echo") as client:
        results = eventually(
            lambda: isinstance(found := client.infer([{"text": "hi"}]), list) and found
        )
    assert results == [{"same": "hi"}]
    assert "start_master_server opens no port" in script.text


@pytest.mark.e2e
def test_the_error_of_a_worker_without_a_master_has_a_hint(old):
    done = run(old.place("worker.py", WORKER_ALONE_1_2), old.directory)
    assert done.returncode == 1
    assert "the master at 10.0.0.1:6500 is not in this process" in done.stderr
    start = "server.start_servables(server.ServableStartConfig('/models', 'lenet', device_ids=1))"
    assert start in done.stderr


@pytest.fixture
def stopped() -> Iterator[None]:
    yield
    server.stop()


@pytest.fixture
def warnings_logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(log, "warning", lambda text, *args: found.append(text % args))
    return found


@pytest.mark.parametrize(
    ("start", "port_name"),
    [(master.start_grpc_server, "grpc_port"), (master.start_restful_server, "restful_port")],
)
def test_without_an_ip_only_this_machine_is_listened_to(
    start, port_name, stopped, warnings_logged, capsys
):
    port = free_port()
    start(**{port_name: port})
    assert f"listening on 127.0.0.1:{port}" in capsys.readouterr().out
    assert listening_addresses(port) == {"0100007F"}
    assert any("pass ip='0.0.0.0'" in text for text in warnings_logged)


def test_an_ip_that_is_given_is_used(stopped, warnings_logged):
    port = free_port()
    master.start_restful_server("0.0.0.0", port)
    assert listening_addresses(port) == {"00000000"}


def listening_addresses(port: int) -> set[str]:
    """The IPv4 addresses, in hexadecimal, at which the kernel listens on `port`."""
    tables = [Path("/proc/net", name).read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    places = [row[1].split(":") for row in rows if row[3] == "0A"]
    return {ip[-8:] for ip, number in places if int(number, 16) == port}  # of ::ffff:a.b.c.d too


@pytest.mark.parametrize("start", [master.start_grpc_server, master.start_restful_server])
@pytest.mark.parametrize("port", [0, 65536, "5500", None])
def test_a_wrong_port_is_refused(start, port):
    with pytest.raises(RuntimeError, match=r"Parameter '(grpc|restful)_port' should be"):
        start("127.0.0.1", port)


def test_stop_of_both_frees_the_port(stopped, warnings_logged):
    port = free_port()
    for stop in (master.stop, worker.stop):
        master.start_restful_server("127.0.0.1", port)
        stop()
        assert listening_addresses(port) == set()


def test_the_limit_of_requests_is_still_set_at_its_old_place():
    with pytest.raises(RuntimeError, match="'max_enqueued_requests' should be >= 1"):
        master.context.set_max_enqueued_requests(0)
    master.context.set_max_enqueued_requests(10_000)


def test_importing_the_old_register_loads_no_server():
    code = (
        "import sys\n"
        "from mindspore_serving.worker import register, distributed\n"
        "print([n for n in ('grpc', 'mindspore_serving.master') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.strip() == "[]"


def test_the_distributed_names_check_and_delegate(tmp_path, warnings_logged):
    start = worker.distributed.start_distributed_servable_in_master
    with pytest.raises(RuntimeError, match="matmul' not exist"):
        start(str(tmp_path), "matmul", "rank_table.json", worker_ip="127.0.0.1", worker_port=6200)
    with pytest.raises(RuntimeError, match="'worker_port' should be"):
        worker.distributed.startup_worker_agents("127.0.0.1", 0, "model.mindir")
    with pytest.raises(RuntimeError, match="Cannot access model file"):
        worker.distributed.startup_worker_agents("127.0.0.1", 6200, ["no_such.mindir"])
    assert any("'distributed.start_servable' instead" in text for text in warnings_logged)


def test_a_servable_may_declare_itself_distributed_by_the_old_name(tmp_path):
    from mindspore_serving.servable.loader import load

    (tmp_path / "matmul").mkdir()
    (tmp_path / "matmul" / "servable_config.py").write_text(
        "from mindspore_serving.worker import distributed, register\n"
        "distributed.declare_distributed_servable(rank_size=8, stage_size=1)\n"
        "@register.register_method(output_names=['y'])\n"
        "def predict(x):\n"
        "    y = register.call_servable(x)\n"
        "    return y\n"
    )
    declaration = load(str(tmp_path), "matmul")
    assert declaration.distributed is not None
    assert declaration.distributed.rank_size == 8
