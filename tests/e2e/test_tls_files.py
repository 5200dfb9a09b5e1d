"""Certificate files at the start of a server: those that cannot be used, and those that expire."""

from pathlib import Path

import pytest
from cryptography import x509

from mindspore_serving import server
from tests.e2e.authority import Authority
from tests.ports import free_port


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.mark.parametrize("which", ["certificate", "private_key", "custom_ca", "mismatch", "locked"])
def test_certificate_files_that_cannot_be_used_are_a_start_error(stopped, ours, which):
    certificate, private_key = ours.issue("server")
    paths = {"certificate": certificate, "private_key": private_key, "custom_ca": ours.ca}
    if which == "mismatch":
        paths["private_key"] = ours.issue("other")[1]
    elif which == "locked":
        paths["certificate"], paths["private_key"] = ours.issue("locked", b"secret")
    else:
        broken = stopped / "broken.pem"
        broken.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
        paths[which] = str(broken)
    tls = server.SSLConfig(**paths, verify_client=True)
    for start in (server.start_grpc_server, server.start_restful_server):
        address = f"127.0.0.1:{free_port()}"
        with pytest.raises(RuntimeError) as caught:
            start(address, ssl_config=tls)
        assert paths.get(which, paths["private_key"]) in str(caught.value)
        start(address)
        server.stop()


@pytest.mark.parametrize("which", ["certificate", "private_key", "custom_ca"])
def test_certificate_files_that_do_not_exist_are_named(stopped, ours, which):
    certificate, private_key = ours.issue("server")
    paths = {"certificate": certificate, "private_key": private_key, "custom_ca": ours.ca}
    paths[which] = str(stopped / "gone.pem")
    tls = server.SSLConfig(**paths, verify_client=True)
    with pytest.raises(FileNotFoundError, match=r"gone\.pem"):
        server.start_grpc_server(f"127.0.0.1:{free_port()}", ssl_config=tls)
    with pytest.raises(RuntimeError, match=r"gone\.pem"):
        server.start_restful_server(f"127.0.0.1:{free_port()}", ssl_config=tls)


def test_a_certificate_that_expires_is_warned_of_at_the_start(tmp_path, run_script):
    told = {-1: "has expired on", 13: "expires on", 15: None, 10_950: None}
    authority = Authority(tmp_path, "authority")
    pairs = [authority.issue(f"of {days} days", days=days) for days in told]
    script = run_script(
        "from mindspore_serving import server\n"
        f"for pair in {pairs}:\n"
        f"    tls = server.SSLConfig(*pair)\n"
        f"    server.start_restful_server('127.0.0.1:{free_port()}', ssl_config=tls)\n"
        "    server.stop()\n"
    )
    assert script.status() == 0
    expected = []
    for words, (certificate, _) in zip(told.values(), pairs, strict=True):
        end = x509.load_pem_x509_certificate(Path(certificate).read_bytes()).not_valid_after_utc
        if words:
            expected.append(f"the certificate in {certificate} {words} {end:%Y-%m-%d}")
    warnings = [line for line in script.lines if "WARNING" in line]
    assert len(warnings) == len(expected)
    assert all(text in line for text, line in zip(expected, warnings, strict=True))
