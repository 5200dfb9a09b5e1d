"""Memory of the machine and of containers, read from files that a test writes."""

from pathlib import Path

import pytest

from mindspore_serving.errors import StartError
from mindspore_serving.llm.runtimes.main_memory import MainMemory, read_main_memory
from tests.llm.machine import write_files

MEMINFO = "MemTotal: 9999 kB\nMemFree: 10 kB\nMemAvailable:   1000 kB\n"
PRESSURE = "some avg10={} avg60=0.00 avg300=0.00 total=0\nfull avg10=99.00 avg60=0 total=0\n"
PATHS = {
    "meminfo": "proc/meminfo",
    "cgroup": "proc/self/cgroup",
    "pressure": "proc/pressure/memory",
}


def read(root: Path, **files: str) -> MainMemory:
    write_files(root, {"proc/meminfo": MEMINFO, **{PATHS.get(k, k): v for k, v in files.items()}})
    return read_main_memory(root)


def test_a_machine_without_limits_and_pressure_information(tmp_path: Path) -> None:
    assert read(tmp_path) == MainMemory(9999 * 1024, 1000 * 1024, 0.0)


def test_the_limit_of_a_container_counts_without_its_cached_files(tmp_path: Path) -> None:
    group = {
        "sys/fs/cgroup/memory.max": "300000\n",
        "sys/fs/cgroup/memory.current": "200000\n",
        "sys/fs/cgroup/memory.stat": "anon 120000\ninactive_file 50000\nactive_file 30000\n",
    }
    write_files(tmp_path, group)
    assert read(tmp_path) == MainMemory(300_000, 180_000)
    write_files(tmp_path, {"sys/fs/cgroup/memory.max": "max\n"})
    assert read(tmp_path).total == 9999 * 1024


def test_the_limit_of_a_systemd_unit_counts(tmp_path: Path) -> None:
    """It may be set for a group above that of the process."""
    root = "sys/fs/cgroup/system.slice"
    group = {
        f"{root}/memory.max": "400000\n",
        f"{root}/memory.current": "100000\n",
        f"{root}/serving.service/memory.max": "max\n",
        f"{root}/serving.service/memory.current": "100000\n",
    }
    write_files(tmp_path, group)
    assert read(tmp_path, cgroup="0::/system.slice/serving.service\n") == MainMemory(
        400_000, 300_000
    )


def test_the_limit_of_cgroup_version_1_counts(tmp_path: Path) -> None:
    root = "sys/fs/cgroup/memory/docker/1f"
    group = {
        f"{root}/memory.limit_in_bytes": "300000\n",
        f"{root}/memory.usage_in_bytes": "200000\n",
        f"{root}/memory.stat": "total_inactive_file 50000\n",
    }
    write_files(tmp_path, group)
    cgroup = "5:cpu:/docker/1f\n4:memory:/docker/1f\n0::/\n"
    assert read(tmp_path, cgroup=cgroup) == MainMemory(300_000, 150_000)


def test_a_group_of_the_machine_that_is_not_mounted_is_passed_over(tmp_path: Path) -> None:
    group = {
        "sys/fs/cgroup/memory.max": "300000\n",
        "sys/fs/cgroup/memory.current": "100000\n",
    }
    write_files(tmp_path, group)
    assert read(tmp_path, cgroup="0::/kubepods/pod1/abc\n").total == 300_000


def test_a_limit_above_the_machine_changes_nothing(tmp_path: Path) -> None:
    group = {"sys/fs/cgroup/memory.max": f"{2**62}\n", "sys/fs/cgroup/memory.current": "1\n"}
    write_files(tmp_path, group)
    assert read(tmp_path) == MainMemory(9999 * 1024, 1000 * 1024)


def test_pressure_is_the_larger_of_machine_and_container(tmp_path: Path) -> None:
    assert read(tmp_path, pressure=PRESSURE.format("2.50")).stalled == 2.5
    write_files(tmp_path, {"sys/fs/cgroup/memory.pressure": PRESSURE.format("12.00")})
    assert read(tmp_path, pressure=PRESSURE.format("2.50")).stalled == 12.0
    assert read(tmp_path, pressure="nothing that is known\n").stalled == 12.0


def test_a_system_without_the_numbers_says_which_option_helps(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="has no MemTotal and MemAvailable; set kv_cache_memory"):
        read_main_memory(tmp_path)
    with pytest.raises(StartError, match="set kv_cache_memory"):
        read(tmp_path, meminfo="MemTotal: many kB\n")
