"""Which proxy leads to the API server, by the rules of Go's clients, which people set their clusters up for.

Pure; called by `session.py`. The variables are HTTPS_PROXY, HTTP_PROXY and NO_PROXY, in upper or lower case,
upper case first. NO_PROXY is a list of host names (with those below them), `.domain` and `*.domain` (only
those below), addresses, networks, any of them but networks with `:port`, or `*`. What is on this machine is
never proxied.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address

_PORTS = {"http": "80", "https": "443"}


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    """The proxy to reach `url` by, as a URL; None to go there directly.

    Args:
        url: Of the server.
        environment: The process's variables.
    """
    parts = urlsplit(url)
    proxy = _variable(environment, f"{parts.scheme}_proxy")
    host = parts.hostname or ""
    if not proxy or not host or _is_this_machine(host):
        return None
    port = str(parts.port or _PORTS.get(parts.scheme, ""))
    for entry in _variable(environment, "no_proxy").split(","):
        if _matches(entry.strip().lower(), host, port):
            return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environment: Mapping[str, str], name: str) -> str:
    return (environment.get(name.upper()) or environment.get(name) or "").strip()


def _is_this_machine(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _address(text: str) -> Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _matches(entry: str, host: str, port: str) -> bool:
    """Whether an entry of NO_PROXY, in lower case, speaks of this host and port."""
    if entry in ("", "*"):
        return entry == "*"
    address = _address(host)
    if "/" in entry:
        return address is not None and _contains(entry, address)
    name, wanted_port = _split(entry)
    if wanted_port not in ("", port):
        return False
    excepted = _address(name)
    if excepted is not None:
        return address == excepted
    domain = _ascii(name[1:] if name.startswith("*.") else name)
    if domain.startswith("."):
        return len(domain) > 1 and host.endswith(domain)
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _contains(network: str, address: Address) -> bool:
    try:
        return address in ip_network(network, strict=False)
    except ValueError:
        return False


def _split(entry: str) -> tuple[str, str]:
    """Host and port; a bare IPv6 address has colons, and no port."""
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    name, colon, port = entry.rpartition(":")
    return (name, port) if colon and ":" not in name else (entry, "")


def _ascii(domain: str) -> str:
    try:
        return domain if domain.isascii() else domain.encode("idna").decode()
    except UnicodeError:
        return domain
