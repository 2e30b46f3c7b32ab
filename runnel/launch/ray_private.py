"""A Ray cluster of this machine alone, for one run: it listens on loopback, and admits only clients with its token.

Before it is used, a separate process checks that the cluster refuses a client without the token:

    python -m runnel.launch.ray_private      reads an address; prints `refused`, `admitted` or an error
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import ray
from ray._private import parameter, ray_constants  # there is no public way to set what these set
from ray.exceptions import RayError

from runnel.errors import UserError

LOOPBACK = "127.0.0.1"

_raylet = importlib.import_module("ray._raylet")  # compiled, and so without types

STORE_BYTES = 80 * 2**20
"""The least that Ray accepts: almost no data goes through it."""

REFUSE_S = 30.0
"""How long a client without a token may take to be refused."""

QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}


def begin(folder: str) -> None:
    """Starts it, and connects this process; raises `UserError` if Ray cannot, or admits clients without the token."""
    with _client_without_token() as client:
        # Set whatever the user's environment says: a cluster that others may use has its own settings.
        os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        _raylet.Config.initialize("")  # Ray has read its environment when it was imported
        try:
            _start(folder)
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise UserError(f"found no Ray cluster, and Ray cannot start one here: {lines[-1]}") from error
        try:
            check_refused(client, ray.get_runtime_context().gcs_address)
        except BaseException:
            ray.shutdown()
            raise


def _start(folder: str) -> None:
    # Without ENABLE_RAY_CLUSTER, Ray keeps the loopback address; otherwise it replaces it by one that others reach. A
    # cluster of one machine does not scale, so there is no monitor, which would open a port for metrics.
    ray_constants.ENABLE_RAY_CLUSTER = False
    parameter.RayParams = functools.partial(parameter.RayParams, no_monitor=True)
    ray.init(
        "local",
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        _node_ip_address=LOOPBACK,
        _temp_dir=f"{folder}/ray",
        **QUIET,
    )


@contextlib.contextmanager
def _client_without_token() -> Iterator[subprocess.Popen[str]]:
    """A process without a token. It is started first, as importing Ray takes it a while."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ |= {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.pathsep.join(sys.path)}
    client = subprocess.Popen(
        [sys.executable, "-P", "-m", "runnel.launch.ray_private"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        text=True,
    )
    with client:
        try:
            yield client
        finally:
            client.kill()


def check_refused(client: subprocess.Popen[str], address: str) -> None:
    """Raises `UserError` unless a client without a token is refused for that reason."""
    try:
        answer, _ = client.communicate(f"{address}\n", REFUSE_S)
    except subprocess.TimeoutExpired:
        answer = f"no answer within {REFUSE_S:.0f} s"
    if answer.strip() != "refused":
        raise UserError(
            f"Ray {ray.__version__} was started with a token, and a client without one was not refused "
            f"({answer.strip() or 'it ended without an answer'}): the cluster was stopped, as others could run code in "
            "it; use the Ray of constraints.txt, or `--launcher local`"
        )


def has_token() -> bool:
    """Whether this process sends a token. A cluster that it is connected to without one admits every client."""
    return _raylet.get_authentication_mode() == _raylet.AuthenticationMode.TOKEN


def try_to_read(address: str) -> str:
    """The result of reading a cluster's keys: `refused`, `admitted` or an error."""
    try:
        _raylet.GcsClient(address=address).internal_kv_keys(b"", b"", 10)
    except RayError as error:
        return "refused" if type(error).__name__ == "AuthenticationError" else f"{type(error).__name__}: {error}"
    return "admitted"


if __name__ == "__main__":
    print(try_to_read(sys.stdin.readline().strip()).splitlines()[0])
