"""Who serves what, and the error where nobody does."""

import pytest

from mindspore_serving.core.deployment import Deployment
from mindspore_serving.core.signature import InstanceSignature, ValueSpec
from mindspore_serving.errors import NotFound, ServableUnavailable
from mindspore_serving.ipc.messages import MethodReport
from mindspore_serving.master.registry import Registry
from mindspore_serving.master.streamed import StreamBalancer, StreamedMethod

SIGNATURE = InstanceSignature(
    (ValueSpec("x1", "float32", (2,)), ValueSpec("x2")), (ValueSpec("y"),)
)
ADD = MethodReport("add", ["x1", "x2"], ["y"], 4, True, False, signature=SIGNATURE)
SUB = MethodReport("sub", ["x1", "x2"], ["y"], 1, False, False)


@pytest.fixture
def registry():
    balancer = StreamBalancer(print)
    return Registry(lambda *what: StreamedMethod(balancer, *what))


def deploy(registry, version, worker, *reports, **options):
    deployment = Deployment("/models", "math", **options)
    return registry.add_worker(deployment, version, list(reports or [ADD]), worker)


def test_a_method_is_found_with_its_workers(registry):
    deploy(registry, 1, "first")
    deploy(registry, 1, "second")
    method = registry.find("math", 1, "add")
    assert method.workers == ["first", "second"]
    assert method.report == ADD
    assert method.label == "servable(math) method(add)"


def test_version_0_is_the_newest_that_runs(registry):
    for version in (2, 10, 9):
        deploy(registry, version, f"worker {version}")
    assert registry.find("math", 0, "add").version == 10


def test_version_0_of_a_servable_with_a_single_version_is_that_version(registry):
    deploy(registry, 7, "worker")
    assert registry.find("math", 0, "add").version == 7


def test_version_0_skips_versions_that_nobody_runs(registry):
    deploy(registry, 1, "old")
    newest = deploy(registry, 2, "new")
    registry.remove_worker(newest, "new")
    assert registry.find("math", 0, "add").version == 1


def test_an_explicit_version_is_not_replaced_by_another(registry):
    deploy(registry, 1, "old")
    newest = deploy(registry, 2, "new")
    registry.remove_worker(newest, "new")
    assert registry.find("math", 2, "add").version == 2
    newest.reason = "exit status 3"
    with pytest.raises(ServableUnavailable, match=r"version\(2\)"):
        registry.find("math", 2, "add")


@pytest.mark.parametrize(
    ("servable", "version", "method", "text"),
    [
        (
            "other",
            0,
            "add",
            "Request servable(other) method(add), servable is not available",
        ),
        (
            "math",
            3,
            "add",
            "Request servable(math) method(add) version(3), servable is not available; "
            "versions are 1",
        ),
        (
            "math",
            0,
            "div",
            "Request servable(math) method(div), method is not available; methods are add",
        ),
        (
            "math",
            0,
            "addd",
            "Request servable(math) method(addd), method is not available; did you mean 'add'?",
        ),
        (
            "mth",
            0,
            "add",
            "Request servable(mth) method(add), servable is not available; did you mean 'math'?",
        ),
    ],
)
def test_unknown_servables_versions_and_methods_are_not_found(
    registry, servable, version, method, text
):
    deploy(registry, 1, "worker")
    with pytest.raises(NotFound) as caught:
        registry.find(servable, version, method)
    assert str(caught.value) == text


def test_a_method_without_expected_workers_is_unavailable_with_the_reason(registry):
    service = deploy(registry, 1, "worker")
    registry.remove_worker(service, "worker")
    assert registry.find("math", 0, "add").workers == []
    service.reason, service.retry_after = "exit status 3", 2.5
    with pytest.raises(
        ServableUnavailable, match=r"servable is not available: exit status 3$"
    ) as caught:
        registry.find("math", 0, "add")
    assert caught.value.retry_after == 2.5
    deploy(registry, 1, "next")
    assert registry.find("math", 0, "add").workers == ["next"]


def test_a_method_is_served_until_its_last_worker_is_removed(registry):
    service = deploy(registry, 1, "both", ADD, SUB)
    deploy(registry, 1, "one", ADD)
    registry.remove_worker(service, "both")
    assert {name: method.is_served for name, method in service.methods.items()} == {
        "add": True,
        "sub": False,
    }
    registry.remove_worker(service, "one")
    assert not service.methods["add"].is_served


def test_a_worker_that_is_withheld_still_serves_its_methods(registry):
    service = deploy(registry, 1, "worker")
    service.reason = "the others have ended"
    method = registry.find("math", 1, "add")
    method.withhold("worker")
    assert registry.find("math", 1, "add").workers == []
    method.restore("worker")
    assert registry.find("math", 1, "add").workers == ["worker"]


def test_removing_a_worker_twice_is_harmless(registry):
    service = deploy(registry, 1, "worker")
    registry.remove_worker(service, "worker")
    registry.remove_worker(service, "worker")
    assert service.workers == []


def test_a_worker_may_run_methods_the_first_did_not(registry):
    deploy(registry, 1, "first", ADD)
    deploy(registry, 1, "second", SUB)
    assert registry.find("math", 1, "sub").workers == ["second"]


def test_a_new_worker_uses_the_queue_that_is_there(registry):
    service = deploy(registry, 1, "first")
    method = registry.find("math", 1, "add")
    registry.remove_worker(service, "first")
    deploy(registry, 1, "second")
    assert registry.find("math", 1, "add") is method


def test_all_services_can_be_listed(registry):
    for version in (1, 2):
        deploy(registry, version, "worker")
    assert [(service.name, service.version) for service in registry] == [("math", 1), ("math", 2)]


@pytest.mark.parametrize(
    ("report", "retry", "can_retry"),
    [(ADD, True, True), (ADD, False, False), (SUB, True, False)],
    ids=["both agree", "the deployment forbids", "the method forbids"],
)
def test_retry_needs_the_consent_of_method_and_deployment(registry, report, retry, can_retry):
    deploy(registry, 1, "worker", report, retry=retry)
    assert registry.find("math", 1, report.name).can_retry is can_retry


def test_a_higher_generation_is_found_after_promotion(registry):
    deploy(registry, 1, "old")
    new = deploy(registry, 1, "new", generation=1)
    assert registry.find("math", 1, "add").workers == ["old"]
    registry.promote(new.deployment)
    assert registry.find("math", 1, "add").workers == ["new"]
    assert list(registry) == [new]


def test_workers_of_a_generation_share_a_service(registry):
    old = deploy(registry, 1, "old")
    new = deploy(registry, 1, "new", generation=1)
    registry.promote(new.deployment)
    assert deploy(registry, 1, "late") is old
    assert deploy(registry, 1, "another", generation=1) is new


def test_a_withdrawn_deployment_is_not_found(registry):
    service = deploy(registry, 1, "worker")
    registry.withdraw(service.deployment)
    with pytest.raises(NotFound):
        registry.find("math", 0, "add")
    assert deploy(registry, 1, "late") is service
    with pytest.raises(NotFound):
        registry.find("math", 0, "add")
    registry.remove(service.deployment)
    assert deploy(registry, 1, "next") is not service
    assert registry.find("math", 0, "add").workers == ["next"]


def test_withdrawing_the_old_generation_leaves_the_current_generation(registry):
    old = deploy(registry, 1, "old")
    new = deploy(registry, 1, "new", generation=1)
    registry.promote(new.deployment)
    registry.remove(old.deployment)
    assert registry.find("math", 1, "add").workers == ["new"]


def test_the_signature_of_a_servable_is_that_of_the_newest_running_version(registry):
    for version in (2, 10, 9):
        deploy(registry, version, f"worker {version}", ADD, SUB)
    found = registry.signature("math", 0)
    assert (found.name, found.version, found.versions) == ("math", 10, (2, 9, 10))
    assert found.methods == {"add": SIGNATURE, "sub": InstanceSignature()}
    assert registry.signature("math", 9).version == 9


def test_a_version_that_never_ran_has_no_signature(registry):
    deploy(registry, 1, "worker")
    assert registry.signature("math", 2) is None
    assert registry.signature("other", 0) is None
