"""The share of memory that vLLM takes on a CPU, by what the kernel and a container show.

vLLM itself is not run here: what it asks of a node is `share * total <= free`, by its own count.
"""

import math

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.engines import vllm_memory
from mindspore_serving.llm.engines.vllm_memory import NodeMemory, choose_share, read_nodes

NODE = """\
Node 0 MemTotal:       24585216 kB
Node 0 MemFree:         4096000 kB
Node 0 MemUsed:        20489216 kB
Node 0 SwapCached:            0 kB
Node 0 Active:         10231868 kB
Node 0 Inactive:        6291456 kB
Node 0 Active(anon):    9231868 kB
Node 0 Inactive(anon):        0 kB
Node 0 Active(file):    1000000 kB
Node 0 Inactive(file):  6000000 kB
Node 0 Unevictable:           0 kB
Node 0 KReclaimable:    1200000 kB
Node 0 Slab:            1500000 kB
Node 0 SReclaimable:    1196608 kB
Node 0 HugePages_Total:     0
Node 0 HugePages_Free:      0
"""
PLAIN = NODE.replace("Node 0 ", "")
KB = 1024
TOTAL, FREE = 24585216 * KB, (4096000 + 1000000 + 6000000 + 1196608) * KB  # half of it
GB = 1 << 30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that writes files of /sys and /proc."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)

    def write(**files):
        for name, text in files.items():
            places = {
                "proc": "proc/meminfo",
                "limit": "sys/fs/cgroup/memory.max",
                "used": "sys/fs/cgroup/memory.current",
            }
            path = tmp_path / places.get(name, f"sys/devices/system/node/{name}/meminfo")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_the_free_memory_of_a_node_includes_reclaimable_memory(machine):
    assert read_nodes(machine(node0=NODE, proc="MemTotal: 1 kB")) == [NodeMemory(TOTAL, FREE)]
    assert round(FREE / TOTAL, 3) == 0.5


def test_a_machine_without_nodes_shows_the_same_in_proc(machine):
    assert read_nodes(machine(proc=PLAIN)) == [NodeMemory(TOTAL, FREE)]


def test_a_node_without_memory_does_not_count(machine):
    empty = NODE.replace("24585216", "0").replace("Node 0", "Node 1")
    assert read_nodes(machine(node0=NODE, node1=empty)) == [NodeMemory(TOTAL, FREE)]


def test_the_limit_of_a_container_counts(machine):
    root = machine(node0=NODE, limit=f"{8 * GB}\n", used=f"{2 * GB}\n")
    assert read_nodes(root) == [NodeMemory(8 * GB, 6 * GB)]
    root = machine(limit="max\n")
    assert read_nodes(root) == [NodeMemory(TOTAL, FREE)]


@pytest.mark.parametrize(
    ("free", "workers", "share"),
    [
        ((1.0,), 1, 0.9),
        ((0.95,), 1, 0.85),
        ((0.91,), 1, 0.81),
        ((0.5,), 1, 0.45),
        ((0.5, 0.3), 2, 0.27),  # a worker on each node
        ((0.5,), 2, 0.22),  # both on one
        ((0.5, 0.5), 3, 0.22),
        ((0.02,), 1, 0.01),
    ],
)
def test_the_share_fits_the_free_memory_of_every_node(free, workers, share):
    nodes = [NodeMemory(100 * GB, int(part * 100 * GB)) for part in free]
    assert choose_share(nodes, workers) == share
    on_each = math.ceil(workers / len(nodes))
    assert all(math.ceil(one.total * share) * on_each <= one.free for one in nodes)


def test_too_little_memory_is_told_before_vllm_is_started():
    with pytest.raises(StartError, match="only 0.5% of the memory is free"):
        choose_share([NodeMemory(1000, 5)])


def test_the_share_is_given_to_vllm_and_said(machine, capsys):
    root = machine(node0=NODE)
    found = vllm_memory.with_share({"model": "m", "tensor_parallel_size": 1}, root)
    assert found == {"model": "m", "tensor_parallel_size": 1, "gpu_memory_utilization": 0.45}
    assert "engine vllm takes 45 % of the memory, as 50 % is free" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gpu_memory_utilization", "kv_cache_memory_bytes"])
def test_options_of_the_operator_are_kept(machine, name):
    assert vllm_memory.with_share({name: 0.3}, machine(node0=NODE)) == {name: 0.3}


def test_the_variable_of_vllm_counts_as_said(machine, monkeypatch):
    root = machine(node0=NODE)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    assert vllm_memory.with_share({"model": "m"}, root) == {"model": "m"}


def test_this_machine_has_memory_that_can_be_shared_out():
    nodes = read_nodes()
    assert all(0 < one.free <= one.total for one in nodes)
