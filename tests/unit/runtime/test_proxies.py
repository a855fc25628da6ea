"""Proxies by Go's rules: each line here was taken from what its documentation promises."""

import pytest

from controller.runtime.proxies import proxy_for

PROXY = "http://proxy.example:3128"
SERVER = "https://10.96.0.1:443"


@pytest.mark.parametrize(
    ("no_proxy", "server"),
    [
        ("*", SERVER),
        ("example.com, *", SERVER),
        ("10.96.0.1", SERVER),
        ("10.96.0.1:443", SERVER),
        ("10.96.0.1:443", "https://10.96.0.1"),
        ("10.96.0.0/12", SERVER),
        (" 192.168.0.0/16 , 10.96.0.0/12 ", SERVER),
        ("10.96.0.7/12", SERVER),
        ("::ffff:10.96.0.1", SERVER),
        ("10.96.0.1", "https://[::ffff:10.96.0.1]"),
        ("fd00::1", "https://[fd00::1]:6443"),
        ("[fd00::1]", "https://[fd00::1]:6443"),
        ("[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("FD00:0::1", "https://[fd00::1]:6443"),
        ("fd00::/8", "https://[fd00::1]:6443"),
        ("example.com", "https://example.com"),
        ("example.com", "https://api.example.com:6443"),
        ("EXAMPLE.com", "https://API.Example.COM"),
        ("example.com:6443", "https://api.example.com:6443"),
        (".example.com", "https://api.example.com"),
        ("*.example.com", "https://api.example.com"),
        (".svc,.cluster.local", "https://kubernetes.default.svc"),
        ("bücher.example", "https://xn--bcher-kva.example"),
        ("nonsense/99,10.96.0.1", SERVER),
        (",,10.96.0.1,", SERVER),
    ],
)
def test_no_proxy_lets_pass(no_proxy: str, server: str) -> None:
    """F-33: networks and host:port were ignored, and the binder never started."""
    assert proxy_for(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}) is None
    assert proxy_for(server, {"https_proxy": PROXY, "no_proxy": no_proxy}) is None


@pytest.mark.parametrize(
    ("no_proxy", "server"),
    [
        ("", SERVER),
        (" , ", SERVER),
        ("10.96.0.2", SERVER),
        ("10.96.0.1:6443", SERVER),
        ("10.97.0.0/16", SERVER),
        ("10.96.0.0/33", SERVER),
        ("10.96.0", SERVER),
        ("fd00::/8", SERVER),
        ("fd00::2", "https://[fd00::1]:6443"),
        ("[fd00::1]:443", "https://[fd00::1]:6443"),
        (".example.com", "https://example.com"),
        ("*.example.com", "https://example.com"),
        ("*example.com", "https://api.example.com"),
        ("example.com", "https://badexample.com"),
        ("example.com:443", "https://api.example.com:6443"),
        ("10.0.0.0/8", "https://ten.example.com"),
        (":443", SERVER),
        (".", "https://example.com"),
        ("/", SERVER),
    ],
)
def test_no_proxy_speaks_of_something_else(no_proxy: str, server: str) -> None:
    """F-33"""
    assert proxy_for(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}) == PROXY


@pytest.mark.parametrize(
    "server",
    [
        "https://localhost:6443",
        "https://LOCALHOST",
        "https://127.0.0.1:6443",
        "https://127.8.9.10",
        "https://[::1]:6443",
        "https://[::ffff:127.0.0.1]",
        "http://127.0.0.1:8001",
    ],
)
def test_this_machine_is_never_proxied(server: str) -> None:
    """F-33"""
    assert proxy_for(server, {"HTTPS_PROXY": PROXY, "HTTP_PROXY": PROXY}) is None


@pytest.mark.parametrize(
    ("environment", "server", "proxy"),
    [
        ({}, SERVER, None),
        ({"HTTPS_PROXY": ""}, SERVER, None),
        ({"HTTPS_PROXY": " "}, SERVER, None),
        ({"HTTP_PROXY": PROXY}, SERVER, None),
        ({"HTTP_PROXY": PROXY}, "http://10.96.0.1", PROXY),
        ({"HTTPS_PROXY": PROXY}, "http://10.96.0.1", None),
        ({"HTTPS_PROXY": "http://upper", "https_proxy": "http://lower"}, SERVER, "http://upper"),
        ({"HTTPS_PROXY": "", "https_proxy": "http://lower"}, SERVER, "http://lower"),
        ({"HTTPS_PROXY": "proxy.example:3128"}, SERVER, PROXY),
        ({"HTTPS_PROXY": "https://user:pass@proxy"}, SERVER, "https://user:pass@proxy"),
        ({"NO_PROXY": "10.96.0.1", "no_proxy": "", "HTTPS_PROXY": PROXY}, SERVER, None),
        ({"NO_PROXY": "other", "no_proxy": "10.96.0.1", "HTTPS_PROXY": PROXY}, SERVER, PROXY),
        ({"ALL_PROXY": PROXY}, SERVER, None),
    ],
)
def test_which_variable_counts(environment: dict[str, str], server: str, proxy: str | None) -> None:
    assert proxy_for(server, environment) == proxy
