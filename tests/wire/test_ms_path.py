import pytest

from mindspore_serving.errors import InvalidInputs
from mindspore_serving.wire.ms_path import parse_path


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/model/lenet:predict", ("lenet", 0, "predict")),
        (b"/model/lenet:predict", ("lenet", 0, "predict")),
        ("/model/lenet/version/3:predict", ("lenet", 3, "predict")),
        ("/model/lenet/version/0:predict", ("lenet", 0, "predict")),
        ("/version/0/model/x:y", ("x", 0, "y")),
        ("/version/2/model/x:y", ("x", 2, "y")),
        ("/api/v1/model/x:y", ("x", 0, "y")),
        ("/my-model/x:y", ("x", 0, "y")),
        ("/model/x:a:b", ("x", 0, "a:b")),
        ("/model/x:@call_a.mindir_0", ("x", 0, "@call_a.mindir_0")),
        ("/model/x/version/1abc:y", ("x", 1, "y")),
        ("/model/x/version/007:y", ("x", 7, "y")),
        ("/model/x/version/4294967294:y", ("x", 4294967294, "y")),
        ("/model/x:y?a=b:c", ("x", 0, "y")),
        ("/model/x:y#z", ("x", 0, "y")),
        ("/model/my%20net:add%5Fcast", ("my net", 0, "add_cast")),
        ("/model/%E6%A8%A1:y", ("\u6a21", 0, "y")),
        ("/model/a%2Fb:y", ("a/b", 0, "y")),
        ("/model/model:y", ("model", 0, "y")),
        ("/model/version:y", ("version", 0, "y")),
        ("/model/version/version/2:y", ("version", 2, "y")),
        ("/model/conversion:y", ("conversion", 0, "y")),
        ("/model/lenet_version2:y", ("lenet_version2", 0, "y")),
        ("/my-model-server/model/x:y", ("x", 0, "y")),
    ],
)
def test_a_url_names_servable_version_and_method(path, route):
    assert parse_path(path) == route


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", r"please check url, the keyword:\[model\] must contain."),
        ("/lenet:predict", r"keyword:\[model\]"),
        ("/model:predict", r"keyword:\[model\]"),
        ("/model/:predict", r"keyword:\[model\]"),
        ("/model/x", r"please check url, the keyword:\[service method\] must contain."),
        ("/model/x:", r"keyword:\[service method\]"),
        ("/model/x?:y", r"keyword:\[service method\]"),
        (
            "/model/x/version/-1:y",
            "please check url, version number range failed, request version number -1",
        ),
        ("/model/x/version/4294967295:y", "range failed, request version number 4294967295"),
        ("/model/x/version/" + "9" * 5000 + ":y", "range failed"),
        (
            "/model/x/version/a:y",
            r"please check url, the keyword:\[version\] value invalid, request version number a",
        ),
        ("/model/x/version/:y", r"keyword:\[version\] value invalid"),
        ("/model/x/version:y", r"keyword:\[version\] value invalid"),
    ],
)
def test_a_wrong_url_is_refused_by_name(path, text):
    with pytest.raises(InvalidInputs, match=text):
        parse_path(path)


def test_bytes_that_are_no_utf8_do_no_harm():
    assert parse_path(b"/model/\xff:y").method == "y"
    assert parse_path("/model/%ff:y").method == "y"
