"""Memory for blocks that two processes share: what is written is read, and nothing else opens."""

import os
import subprocess
import sys

import pytest

from mindspore_serving.llm.storage.block_memory import BlockMemory

SIZE = 4096
WRITER = """
import sys
from mindspore_serving.llm.storage.block_memory import BlockMemory
memory = BlockMemory.open(sys.argv[1], sys.argv[2], 4096)
memory.write(1, [memoryview(b"w" * 4096)], None)
print("written", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory():
    memory = BlockMemory.create(3, SIZE)
    yield memory
    memory.close()


def opened_files():
    """Targets of the descriptors of this process."""
    root = "/proc/self/fd"
    targets = []
    for name in os.listdir(root):
        try:
            targets.append(os.readlink(f"{root}/{name}"))
        except OSError:
            continue
    return targets


def test_a_block_of_a_process_that_was_killed_can_be_read(memory):
    command = [sys.executable, "-c", WRITER, memory.path, memory.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"written\n"
        writer.kill()
    assert bytes(memory.read(1)) == b"w" * SIZE
    assert bytes(memory.read(2)) == bytes(SIZE)


def test_memory_cannot_grow_beyond_its_blocks(memory):
    writer = BlockMemory.open(memory.path, memory.name, SIZE)
    with pytest.raises(PermissionError):
        writer.write(3, [memoryview(bytes(SIZE))], None)
    with pytest.raises(OSError, match="read in part"):
        memory.read(3)
    writer.close()


def test_only_memory_with_the_name_is_opened(memory, tmp_path):
    other = BlockMemory.create(1, SIZE)
    with pytest.raises(OSError, match="expected the memory"):
        BlockMemory.open(other.path, memory.name, SIZE)
    file = tmp_path / "file"
    with open(file, "wb") as stream, pytest.raises(OSError, match="expected the memory"):
        BlockMemory.open(f"/proc/self/fd/{stream.fileno()}", memory.name, SIZE)
    other.close()
    with pytest.raises(FileNotFoundError):
        BlockMemory.open(other.path, other.name, SIZE)


def test_closed_memory_is_gone(memory):
    assert any(memory.name in target for target in opened_files())
    memory.close()
    memory.close()
    assert not any(memory.name in target for target in opened_files())
