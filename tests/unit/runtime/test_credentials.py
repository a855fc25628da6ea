"""Credentials: from where they come, what is said of broken ones, and that nothing is left behind."""

import base64
import json
import os
import pwd
import ssl
import stat
import subprocess
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from controller.admission import tls
from controller.runtime.credentials import Credentials, CredentialsError, Login, TokenFile
from tests.authority import issued

pytestmark = pytest.mark.anyio

Object = dict[str, Any]
SECRET = "s3cr3t-t0ken"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go; and no credentials of the person who runs the tests."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    return directory


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A self-signed certificate and its key."""
    directory = tmp_path_factory.mktemp("pair")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test"]
    command += ["-keyout", str(directory / "key"), "-out", str(directory / "certificate")]
    subprocess.run(command, check=True, capture_output=True)
    return (directory / "certificate").read_bytes(), (directory / "key").read_bytes()


def kubeconfig(*, cluster: Object | None = None, user: Object | None = None, **more: object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://server:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": SECRET} if user is None else user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
        **more,
    }


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def load(directory: Path, content: Object | str | bytes) -> Login:
    path = directory / "kubeconfig"
    if isinstance(content, dict):
        content = json.dumps(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return await Credentials(str(path)).load()


async def failure(loading: Callable[[], Any]) -> str:
    with pytest.raises(CredentialsError) as caught:
        await loading()
    whole = "".join(traceback.format_exception(caught.value))
    assert SECRET not in whole
    assert caught.value.__context__ is None, "what it was made of may hold a secret"
    return str(caught.value)


# What is in them.


async def test_a_token_and_a_server(tmp_path: Path, temporary: Path) -> None:
    login = await load(tmp_path, kubeconfig())
    assert (login.server, login.token, login.token_file) == ("https://server:6443", SECRET, None)
    assert (login.proxy, login.certificate, login.tls) == (None, (), True)


async def test_embedded_certificates_leave_no_file(
    tmp_path: Path, temporary: Path, pair: tuple[bytes, bytes]
) -> None:
    """F-39: each login left three files, one of them the key."""
    certificate, key = (base64.b64encode(part).decode() for part in pair)
    user = {"client-certificate-data": certificate, "client-key-data": key}
    login = await load(tmp_path, kubeconfig(cluster={"certificate-authority-data": certificate}, user=user))
    assert isinstance(login.tls, ssl.SSLContext)
    assert login.tls.get_ca_certs()[0]["subject"] == ((("commonName", "test"),),)
    assert login.certificate == (pair[0], pair[1], pair[0])
    assert files_in(temporary) == []


@pytest.mark.parametrize("broken", ["client-key-data", "client-certificate-data"])
async def test_broken_embedded_certificates_leave_no_file(
    tmp_path: Path, temporary: Path, pair: tuple[bytes, bytes], broken: str
) -> None:
    """F-39"""
    certificate, key = (base64.b64encode(part).decode() for part in pair)
    user = {"client-certificate-data": certificate, "client-key-data": key, broken: "abc"}
    text = await failure(lambda: load(tmp_path, kubeconfig(user=user)))
    assert f"{broken} of the user is not base64" in text
    user[broken] = base64.b64encode(SECRET.encode()).decode()
    text = await failure(lambda: load(tmp_path, kubeconfig(user=user)))
    assert "SSLError" in text
    assert files_in(temporary) == []


async def test_certificates_of_an_exec_plugin_leave_no_file(
    tmp_path: Path, temporary: Path, pair: tuple[bytes, bytes]
) -> None:
    """F-39: of the kind"""
    answer = {"clientCertificateData": pair[0].decode(), "clientKeyData": pair[1].decode()}
    user = {"exec": _plugin(tmp_path, {"status": answer})}
    login = await load(tmp_path, kubeconfig(user=user))
    assert login.certificate == pair
    assert files_in(temporary) == []


async def test_files_are_found_beside_the_kubeconfig(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    (tmp_path / "certificate").write_bytes(pair[0])
    login = await load(tmp_path, kubeconfig(cluster={"certificate-authority": "certificate"}))
    assert login.certificate == (pair[0],)
    assert (tmp_path / "certificate").exists()


async def test_a_certificate_of_ours_and_the_system_s_trust(
    tmp_path: Path, pair: tuple[bytes, bytes]
) -> None:
    certificate, key = (base64.b64encode(part).decode() for part in pair)
    user = {"client-certificate-data": certificate, "client-key-data": key}
    login = await load(tmp_path, kubeconfig(user=user))
    assert isinstance(login.tls, ssl.SSLContext)
    assert login.tls.verify_mode == ssl.CERT_REQUIRED


async def test_an_authority_that_another_one_signed(tmp_path: Path) -> None:
    """Go trusts what it is told to trust; OpenSSL wanted to see a root: the server could not be reached."""
    server = tls.load(issued(tmp_path / "ca.crt")).context
    login = await load(tmp_path, kubeconfig(cluster={"certificate-authority": "ca.crt"}))
    assert isinstance(login.tls, ssl.SSLContext)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        login.tls.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in tuple(sides):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
                sides.remove(side)


async def test_a_server_that_is_not_verified_is_not(tmp_path: Path) -> None:
    login = await load(tmp_path, kubeconfig(cluster={"insecure-skip-tls-verify": True}))
    assert isinstance(login.tls, ssl.SSLContext)
    assert login.tls.verify_mode == ssl.CERT_NONE


async def test_a_token_file_wins_and_is_trimmed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    login = await load(tmp_path, kubeconfig(user={"token": SECRET, "tokenFile": "token"}))
    assert login.token == "from-file"
    assert login.token_file is not None
    assert login.token_file.path == tmp_path / "token"


async def test_dates_of_yaml_do_no_harm(tmp_path: Path) -> None:
    text = f"""
current-context: x
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "https://server", expires: 2030-01-01}}}}]
users: [{{name: u, user: {{token: {SECRET}, expires: 2030-01-01T00:00:00Z, 5: 6}}}}]
"""
    assert (await load(tmp_path, text)).token == SECRET


async def test_an_exec_plugin_is_run(tmp_path: Path) -> None:
    plugin = _plugin(tmp_path, {"status": {"token": "from-plugin"}})
    login = await load(tmp_path, kubeconfig(user={"exec": plugin}))
    assert login.token == "from-plugin"


async def test_an_exec_plugin_beside_the_kubeconfig(tmp_path: Path) -> None:
    plugin = _plugin(tmp_path, {"status": {"token": "from-plugin"}}) | {"command": "./plugin"}
    assert (await load(tmp_path, kubeconfig(user={"exec": plugin}))).token == "from-plugin"


# Where they come from.


def _account(directory: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[bytes, bytes]) -> Path:
    account = directory / "account"
    account.mkdir()
    (account / "token").write_text("of-the-pod\n")
    (account / "ca.crt").write_bytes(pair[0])
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return account


def _written(path: Path, server: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kubeconfig(cluster={"server": server})))
    return path


async def test_the_order_is_controller_runtime_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[bytes, bytes]
) -> None:
    """F-42: a ~/.kube/config won over the account of the pod, unlike what the help says."""
    account = _account(tmp_path, monkeypatch, pair)
    _written(tmp_path / "home" / ".kube" / "config", "https://home")
    named = str(_written(tmp_path / "named", "https://named"))
    monkeypatch.setenv("KUBECONFIG", str(_written(tmp_path / "listed", "https://listed")))

    async def server(kubeconfig: str = "") -> str:
        return (await Credentials(kubeconfig, service_account=account).load()).server

    assert await server(named) == "https://named"
    assert await server() == "https://listed"
    monkeypatch.delenv("KUBECONFIG")
    assert await server() == "https://[fd00::1]:443"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert await server() == "https://home"
    (tmp_path / "home" / ".kube" / "config").unlink()
    assert "neither" in await failure(Credentials(service_account=account).load)


async def test_the_account_of_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[bytes, bytes]
) -> None:
    account = _account(tmp_path, monkeypatch, pair)
    login = await Credentials(service_account=account).load()
    assert (login.token, login.certificate) == ("of-the-pod", (pair[0],))
    assert login.token_file is not None


async def test_of_several_kubeconfigs_the_first_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _written(tmp_path / "first", "https://first")
    second = _written(tmp_path / "second", "https://second")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}::{first}:{second}")
    assert (await Credentials().load()).server == "https://first"


async def test_a_kubeconfig_that_does_not_exist_is_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[bytes, bytes]
) -> None:
    """F-42: a KUBECONFIG that does not exist was skipped, and somebody else's credentials were used."""
    account = _account(tmp_path, monkeypatch, pair)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert str(tmp_path / "missing") in await failure(Credentials(service_account=account).load)
    assert "does not exist" in await failure(Credentials(str(tmp_path / "missing")).load)


async def test_later_they_come_from_where_they_came_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[bytes, bytes]
) -> None:
    account = _account(tmp_path, monkeypatch, pair)
    _written(tmp_path / "home" / ".kube" / "config", "https://home")
    credentials = Credentials(service_account=account)
    await credentials.load()
    (account / "token").unlink()
    assert "FileNotFoundError" in await failure(credentials.load)


async def test_the_namespace_is_that_of_the_context_or_of_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[bytes, bytes]
) -> None:
    account = _account(tmp_path, monkeypatch, pair)
    (account / "namespace").write_text("of-the-pod\n")
    assert (await Credentials(service_account=account).load()).namespace == "of-the-pod"
    (account / "namespace").unlink()
    assert (await Credentials(service_account=account).load()).namespace == "default"
    named = tmp_path / "named"
    clusters = [{"name": "c", "cluster": {"server": "https://one"}}]
    contexts = [
        {"name": "plain", "context": {"cluster": "c"}},
        {"name": "team", "context": {"cluster": "c", "namespace": "team"}},
        {"name": "odd", "context": {"cluster": "c", "namespace": 7}},
    ]
    config = {"current-context": "plain", "clusters": clusters, "contexts": contexts}
    named.write_text(json.dumps(config))
    found = [
        (await Credentials(str(named), context=name).load()).namespace
        for name in ("", "plain", "team", "odd")
    ]
    assert found == ["default", "default", "team", "default"]
    told = await failure(Credentials(str(named), context="absent").load)
    assert "there is no context of the name that was asked for" in told


async def test_a_context_is_looked_for_in_the_kubeconfig_though_there_is_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[bytes, bytes]
) -> None:
    account = _account(tmp_path, monkeypatch, pair)
    told = await failure(Credentials(context="team", service_account=account).load)
    assert "neither a kubeconfig nor" in told


# What is said of broken ones.

BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no mapping"),
    "null": ("null", "no mapping"),
    "a list": (f"[{SECRET}]", "no mapping"),
    "a word": (SECRET, "no mapping"),
    "truncated": (f'{{"a": 1,\n"token": "{SECRET}",\n"b": [', "line 3"),
    "cut in a string": (f'a: 1\ntoken: "{SECRET}', "line 2"),
    "bad indent": (f"a: 1\nb:\n  token: {SECRET}\n c: d\n", "line 4"),
    "a tab": (f"a:\n\ttoken: {SECRET}\n", "line 2"),
    "binary": (b"\x7fELF\x00\x01" + SECRET.encode(), "ReaderError"),
    "no utf-8": (b"a: \xff\xfe" + SECRET.encode(), "UnicodeDecodeError"),
    "an object of Python": (f"!!python/object:{SECRET} {{}}", "line 1"),
    "bytes": ("a: !!binary aGVsbG8=", "TypeError"),
    "no context": (json.dumps(kubeconfig() | {"current-context": ""}), "current-context"),
    "another context": (json.dumps(kubeconfig() | {"current-context": SECRET}), "context"),
    "no cluster": (json.dumps(kubeconfig() | {"clusters": None}), "cluster"),
    "clusters are no list": (json.dumps(kubeconfig() | {"clusters": SECRET}), "clusters is no list"),
    "a cluster is no mapping": (
        json.dumps(kubeconfig() | {"clusters": [SECRET, {"name": "c", "cluster": SECRET}]}),
        "no mapping",
    ),
    "no user": (json.dumps(kubeconfig() | {"users": []}), "user"),
    "a user is no mapping": (
        json.dumps(kubeconfig() | {"users": [{"name": "u", "user": SECRET}]}),
        "mapping",
    ),
    "no server": (json.dumps(kubeconfig(cluster={"server": None})), "server"),
    "a server that is no URL": (json.dumps(kubeconfig(cluster={"server": SECRET})), "server"),
    "a server of another kind": (json.dumps(kubeconfig(cluster={"server": f"ftp://{SECRET}"})), "server"),
    "a server without host": (json.dumps(kubeconfig(cluster={"server": "https://"})), "server"),
    "a port that is none": (json.dumps(kubeconfig(cluster={"server": f"https://a:{SECRET}"})), "server"),
    "a port too high": (json.dumps(kubeconfig(cluster={"server": "https://a:99999"})), "server"),
    "a token of two lines": (json.dumps(kubeconfig(user={"token": f"{SECRET}\nx: y"})), "no token has"),
    "a token that is no text": (json.dumps(kubeconfig(user={"token": f"{SECRET}ü"})), "no token has"),
    "username": (json.dumps(kubeconfig(user={"username": "u", "password": SECRET})), "password"),
    "as": (json.dumps(kubeconfig(user={"token": SECRET, "as": SECRET})), "impersonates another one (as)"),
    "as of a group": (
        json.dumps(kubeconfig(user={"token": SECRET, "as": SECRET, "as-groups": [SECRET]})),
        "impersonates another one (as, as-groups)",
    ),
    "a key in the place of its file": (
        json.dumps(kubeconfig(user={"client-key": f"-----BEGIN{SECRET * 500}"})),
        "client-key of the user is no file",
    ),
    "a missing authority": (json.dumps(kubeconfig(cluster={"certificate-authority": SECRET})), "is no file"),
    "exec without command": (json.dumps(kubeconfig(user={"exec": {"args": [SECRET]}})), "no command"),
    "exec is no mapping": (json.dumps(kubeconfig(user={"exec": SECRET})), "exec of the user is no mapping"),
    "exec that is not there": (
        json.dumps(kubeconfig(user={"exec": {"apiVersion": "v1", "command": f"/{SECRET}"}})),
        "FileNotFoundError",
    ),
}


@pytest.mark.parametrize(("content", "told"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_kubeconfig_is_named_and_never_quoted(
    tmp_path: Path, temporary: Path, content: str | bytes, told: str
) -> None:
    """F-38: errors of YAML quote the line, and with it the token."""
    text = await failure(lambda: load(tmp_path, content))
    assert str(tmp_path / "kubeconfig") in text
    assert told in text
    assert files_in(temporary) == []


async def test_a_user_who_acts_as_another_is_not_taken_for_himself(tmp_path: Path) -> None:
    """It was left out in silence, and what was done was done with other rights than asked for."""
    for field, value in (("as", "viewer"), ("as-uid", "7"), ("as-user-extra", {"scopes": ["view"]})):
        told = await failure(partial(load, tmp_path, kubeconfig(user={"token": "t", field: value})))
        assert f"impersonates another one ({field})" in told
    nobody: Object = {"token": SECRET, "as": "", "as-groups": [], "as-user-extra": {}}
    assert (await load(tmp_path, kubeconfig(user=nobody))).token == SECRET


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (f"echo {SECRET} >&2; exit 3", "RuntimeError"),
        (f"echo {SECRET}", "JSONDecodeError"),
        ("echo '{\"status\": {}}'", "KeyError"),
        ("echo '{}'", "KeyError"),
        ("echo '[]'", "TypeError"),
        ("kill -9 $$", "RuntimeError"),
    ],
)
async def test_what_a_plugin_says_is_never_quoted(tmp_path: Path, answer: str, told: str) -> None:
    """F-38: of the kind"""
    path = tmp_path / "plugin"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o700)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path)}}
    assert told in await failure(lambda: load(tmp_path, kubeconfig(user=user)))


async def test_another_user_s_plugin(tmp_path: Path) -> None:
    path = tmp_path / "plugin"
    path.write_text("no program, and nobody may run it")
    path.chmod(0o600)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path)}}
    assert "PermissionError (Permission denied)" in await failure(
        lambda: load(tmp_path, kubeconfig(user=user))
    )


async def test_a_directory(tmp_path: Path) -> None:
    assert "IsADirectoryError" in await failure(Credentials(str(tmp_path)).load)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = _written(tmp_path / "kubeconfig", "https://server")
    path.chmod(0)
    assert "PermissionError" in await failure(Credentials(str(path)).load)


async def test_an_encrypted_key_is_refused_without_asking_for_its_password(
    tmp_path: Path, pair: tuple[bytes, bytes]
) -> None:
    certificate = base64.b64encode(pair[0]).decode()
    key = base64.b64encode(_encrypted(pair[1])).decode()
    user = {"client-certificate-data": certificate, "client-key-data": key}
    assert "encrypted" in await failure(lambda: load(tmp_path, kubeconfig(user=user)))


def _encrypted(key: bytes) -> bytes:
    command = ["openssl", "rsa", "-aes128", "-passout", "pass:x"]
    return subprocess.run(command, input=key, check=True, capture_output=True).stdout


def _plugin(directory: Path, answer: Object) -> Object:
    (directory / "answer").write_text(json.dumps(answer))
    path = directory / "plugin"
    path.write_text(f"#!/bin/sh\ncat {directory / 'answer'}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"apiVersion": "client.authentication.k8s.io/v1", "command": str(path)}


# Where nothing can be written, or looked at.


async def test_a_kubeconfig_without_a_place_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a trace at the start, and later, when /tmp was full, the end of all work at the first 401."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    told = await failure(lambda: load(tmp_path, kubeconfig(user={"token": "t"})))
    assert "cannot be loaded: a kubeconfig needs a place for temporary files" in told


async def test_the_account_of_the_pod_needs_no_place_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[bytes, bytes]
) -> None:
    """A policy may make the whole file system of a pod read-only."""
    account = _account(tmp_path, monkeypatch, pair)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert (await Credentials(service_account=account).load()).token == "of-the-pod"


@pytest.mark.parametrize(
    ("kubeconfig", "home", "told"),
    [
        ("a\0b", "", "does not exist"),
        ("~nobody-of-this-name/config", "", "RuntimeError"),
        ("", "h" * 300, "File name too long"),
    ],
)
async def test_a_place_that_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: str, home: str, told: str
) -> None:
    """It was a trace."""
    monkeypatch.setenv("HOME", home)
    text = await failure(Credentials(kubeconfig).load)
    assert text.startswith("the credentials cannot be loaded: ")
    assert told in text


async def test_whoever_has_no_home_has_no_kubeconfig_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a trace."""

    def nobody(_: object) -> object:
        raise KeyError("no such user")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert "neither a kubeconfig nor" in await failure(Credentials().load)


# A token that is renewed.


async def test_a_token_is_read_again_when_its_file_changes(tmp_path: Path) -> None:
    """F-41: it was read after a 401 only."""
    path = tmp_path / "token"
    path.write_text("first\n")
    file = TokenFile(path, clock=anyio.current_time)
    assert file.changed() == "first"
    await anyio.sleep(1.1)
    assert file.changed() is None
    fresh = tmp_path / "fresh"
    fresh.write_text("other\n")
    fresh.rename(path)
    assert file.changed() is None, "looked at once a second"
    await anyio.sleep(1.1)
    assert file.changed() == "other"


async def test_a_token_file_that_vanishes_is_told_once(tmp_path: Path, logs: list[str]) -> None:
    """F-41: of the kind"""
    path = tmp_path / "token"
    path.write_text("first")
    file = TokenFile(path, clock=anyio.current_time)
    assert file.changed() == "first"
    path.unlink()
    for _ in range(5):
        await anyio.sleep(1.1)
        assert file.changed() is None
    assert [line.split()[0] for line in logs] == ["WARNING"]
    for content in (b"", b" \n", b"a\nb", b"\xff\xfe", b"to\xc3\xbcken"):
        path.write_bytes(content)
        await anyio.sleep(1.1)
        assert file.changed() is None
    path.write_text("back")
    await anyio.sleep(1.1)
    assert file.changed() == "back"
