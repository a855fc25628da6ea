"""The sockets under the session, and what it says of itself."""

import os
import re
import socket
import sys

import pytest

from controller.runtime.session import _agent, _socket


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the user time-out")
def test_an_end_that_vanished_is_noticed() -> None:
    """F-44: a dead connection ate two renewals of the lease."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with _socket((family, socket.SOCK_STREAM, 0)) as made:
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15


def test_an_audit_log_tells_one_process_from_the_next() -> None:
    found = re.fullmatch(r"kai-binder/[0-9.]+ \((.+); pid (\d+)\)", _agent())
    assert found is not None
    assert found.groups() == (socket.gethostname(), str(os.getpid()))
