"""What processes say first: which messages they understand."""

from types import ModuleType

from mindspore_serving.cluster import node_messages
from mindspore_serving.distributed import messages as gang_messages
from mindspore_serving.ipc import messages as worker_messages
from mindspore_serving.isolation import messages as fork_messages
from mindspore_serving.llm.parallel import messages as rank_messages
from mindspore_serving.process.vocabulary import (
    Hello,
    Message,
    fingerprint,
    hello,
    version_mismatch,
)
from mindspore_serving.server.processes import messages as front_end_messages

ROLES = (
    worker_messages,
    front_end_messages,
    gang_messages,
    rank_messages,
    node_messages,
    fork_messages,
)


def role(**kinds: type[Message]) -> ModuleType:
    """A module with these messages."""
    module = ModuleType("role")
    vars(module).update(kinds)
    return module


class Step(Message, frozen=True, tag=10):
    number: int


class OtherTag(Message, frozen=True, tag=11):
    number: int


class OtherField(Message, frozen=True, tag=10):
    count: int


def test_each_role_has_a_fingerprint_of_its_own() -> None:
    assert len({fingerprint(messages) for messages in ROLES}) == len(ROLES)


def test_a_fingerprint_depends_on_tags_fields_and_messages() -> None:
    for kind in (OtherTag, OtherField):
        kind.__name__ = "Step"
    modules = (role(), role(a=Step), role(a=OtherTag), role(a=OtherField), role(a=Step, b=OtherTag))
    assert len({fingerprint(module) for module in modules}) == len(modules)
    assert fingerprint(role(z=Step)) == fingerprint(role(a=Step))


def test_a_process_of_another_version_is_refused_with_both() -> None:
    assert version_mismatch(hello(worker_messages), worker_messages, "worker") == ""
    text = version_mismatch(Hello("other", "/there/mindspore_serving"), worker_messages, "worker")
    assert "the worker's mindspore_serving in /there/mindspore_serving has protocol other" in text
    assert f"the server's {fingerprint(worker_messages)}: both must be of one release" in text
