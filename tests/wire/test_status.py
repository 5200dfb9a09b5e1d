import grpc
import pytest

from mindspore_serving.errors import (
    Code,
    InvalidInputs,
    Overloaded,
    ServableUnavailable,
    WorkerUnavailable,
)
from mindspore_serving.wire import status


def test_every_code_has_a_row():
    assert set(status.TABLE) == set(Code)


def test_the_original_numbers_are_kept_and_new_codes_map_to_them():
    assert [status.of(code).mindspore for code in range(6)] == [0, 1, 2, 3, 4, 5]
    assert status.of(Code.NOT_FOUND).mindspore == 2
    assert status.of(Code.OVERLOADED).mindspore == 1


def test_grpc_names_exist_in_grpc():
    for row in status.TABLE.values():
        assert grpc.StatusCode[row.grpc]


def test_http_statuses_distinguish_client_and_server_errors():
    assert status.of(Code.INVALID_INPUTS).http == 400
    assert status.of(Code.NOT_FOUND).http == 404
    assert status.of(Code.SYSTEM_ERROR).http == 500
    assert status.of(Code.SERVABLE_UNAVAILABLE).http == 503


def test_an_unknown_number_counts_as_failed():
    assert status.of(77) == status.of(Code.FAILED)


def test_a_failure_is_common_only_if_every_instance_has_the_same():
    assert status.common_failure([(1, "a"), (1, "a")]) == (1, "a")
    assert status.common_failure([(1, "a"), (1, "b")]) is None
    assert status.common_failure([(1, "a"), (2, "a")]) is None
    assert status.common_failure([(1, "a"), None]) is None
    assert status.common_failure([None, None]) is None
    assert status.common_failure([]) is None


def test_a_value_that_does_not_fit_is_named_with_the_index_of_its_instance():
    failures = [None, (Code.INVALID_TENSOR, "bad"), (Code.SYSTEM_ERROR, "raised")]
    assert status.numbered(failures) == [
        None,
        (Code.INVALID_TENSOR, "bad (instance 1, counted from 0)"),
        (Code.SYSTEM_ERROR, "raised"),
    ]


@pytest.mark.parametrize(
    ("error", "header"),
    [
        (Overloaded("full", 2.1), "3"),
        (Overloaded("full", 0.0), "1"),
        (ServableUnavailable("starts"), "1"),
        (WorkerUnavailable("died"), "1"),
        (InvalidInputs("wrong"), None),
        (None, None),
    ],
)
def test_retry_after_is_sent_only_for_temporary_errors(error, header):
    assert status.retry_after(error) == header
