"""Public functions for workers on other machines: which machines may join, and where."""

import os

from mindspore_serving.cluster.dialing import read_token
from mindspore_serving.cluster.ray_machines import RayPlan
from mindspore_serving.cluster.worker_process import TOKEN
from mindspore_serving.errors import InvalidInputs
from mindspore_serving.frontends import address as addresses
from mindspore_serving.servable.check import check_bool, check_int, check_str
from mindspore_serving.server import startup
from mindspore_serving.server.ssl_config import SSLConfig
from mindspore_serving.server.startup_report import announce

_TAG = "node server"


def start_node_server(
    address: str,
    ssl_config: SSLConfig | None = None,
    *,
    token_file: "str | os.PathLike[str] | None" = None,
    insecure: bool = False,
    local_slots: int | None = None,
) -> None:
    """Let other machines run workers of this server: `mindspore-serving worker --join ADDRESS`.

    Call it before `start_servables`.

    Args:
        address: `ip:port`.
        ssl_config: certificates for TLS.  With `verify_client` machines need a certificate signed
            by `custom_ca`; else they need the token.
        token_file: a file with the token that they must send; None for the environment variable
            MINDSPORE_SERVING_TOKEN, if it is set.
        insecure: whether to do without TLS; only for addresses of this machine, and with a token.
        local_slots: limit of workers on this machine; None (default) for no limit.  With 0 all run
            on machines that join: `start_servables` waits for them, at most 300 s.

    Raises:
        RuntimeError: an argument is invalid or the address cannot be bound (everything is stopped
            then), or this server is running already.
    """
    with startup.all_or_nothing():
        where = addresses.parse(check_str("address", address), _TAG, allow_unix=False)
        if check_bool("insecure", insecure):
            addresses.check_loopback(where, _TAG)
            ssl_config = None
        token = read_token(token_file)
        _check(ssl_config, token, insecure)
        if local_slots is not None:
            check_int("local_slots", local_slots, 0, None)
        startup.run_on_server(
            lambda serving: serving.machines.start_nodes(
                where, serving.renewal.certificates(ssl_config), token, local_slots
            )
        )
    announce(f"machines may join at {address}")


def start_ray_machines(
    slots: int,
    num_machines: int = 0,
    *,
    address: str = "auto",
    device_type: str = "CPU",
    servables: str | None = None,
) -> None:
    """Let machines of a Ray cluster run workers of this server.

    Starts a Ray actor on each machine, which joins like other machines and is restarted if it or
    its machine is lost.  Call it between `start_node_server`, with a token, and `start_servables`.
    Ray must be installed here, and this package on every machine.

    Args:
        slots: limit of workers on each machine; each counts as one CPU (GPU) of Ray.
        num_machines: number of machines; 0 (default) for all that have so many CPUs (GPUs).
        address: address of the cluster; "auto" for the cluster of this machine.
        device_type: "CPU" or "GPU".
        servables: directory of servables on those machines; None for the same path as here.

    Raises:
        RuntimeError: an argument is invalid, the cluster does not answer, or it has too few free
            machines for 60 s; everything is stopped then.
    """
    with startup.all_or_nothing():
        kind = check_str("device_type", device_type).lower()
        if kind not in ("cpu", "gpu"):
            raise InvalidInputs(f"device_type is {device_type!r}, expected 'CPU' or 'GPU'")
        plan = RayPlan(
            check_int("num_machines", num_machines, 0),
            check_int("slots", slots, 1),
            check_str("address", address),
            kind,
            servables,
        )
        startup.run_on_server(lambda serving: serving.machines.start_ray(plan))
    announce("machines of the Ray cluster join")


def _check(tls: SSLConfig | None, token: str, insecure: bool) -> None:
    """Raise InvalidInputs if traffic would be unencrypted, or any machine could join."""
    if not insecure and not isinstance(tls, SSLConfig):
        raise InvalidInputs(
            f"The {_TAG} needs certificates (ssl_config, or --tls-cert and --tls-key), unless it "
            "listens on an address of this machine and is set to insecure"
        )
    if not token and not (tls and tls.verify_client):
        raise InvalidInputs(
            f"The {_TAG} needs a token (token_file or {TOKEN}), or an authority that signs the "
            "certificates of machines (custom_ca with verify_client, or --tls-ca)"
        )
