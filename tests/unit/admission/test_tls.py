"""Certificates in files, as the kubelet changes them, and what is shown of them."""

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller.admission.certificate import Issued, issue
from controller.admission.tls import Certificate, KeyPair, UnusableError, files, load
from tests.certificates import Mount

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def made(now: datetime = NOW) -> Issued:
    return issue(["localhost"], now)


def followed(mount: Mount) -> Certificate:
    return Certificate(files(mount.certificate, mount.key), clock=lambda: NOW)


@pytest.fixture
def mount(tmp_path: Path) -> Mount:
    return Mount(tmp_path)


def test_a_swap_of_both_files_is_followed(mount: Mount) -> None:
    first, second = made(), made()
    mount.put(first.pair)
    certificate = followed(mount)
    certificate.look()
    shown = certificate.shown
    assert shown.pair == first.pair
    certificate.look()
    assert certificate.shown is shown, "what is the same is not loaded again"
    mount.put(second.pair)
    certificate.look()
    assert (certificate.shown.pair, certificate.problem) == (second.pair, None)


def test_a_full_place_for_temporary_files_is_waited_for(
    mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the webhook, with a good certificate in use."""
    first, second = made(), made()
    mount.put(first.pair)
    certificate = followed(mount)
    certificate.look()
    monkeypatch.setattr(tempfile, "tempdir", str(mount.certificate / "missing"))
    mount.put(second.pair)
    certificate.look()
    assert certificate.shown.pair == first.pair
    assert "needs a place for a temporary file" in str(certificate.problem)
    monkeypatch.undo()
    certificate.look()
    assert (certificate.shown.pair, certificate.problem) == (second.pair, None)


def test_a_pair_that_is_half_written_is_not_shown(mount: Mount, logs: list[str]) -> None:
    first, second = made(), made()
    mount.put(first.pair)
    certificate = followed(mount)
    certificate.look()
    mount.put(KeyPair(second.pair.certificate, first.pair.key))
    certificate.look()
    certificate.look()
    assert certificate.shown.pair == first.pair
    assert certificate.problem == "the certificate and the key cannot be used together: KEY_VALUES_MISMATCH"
    (told,) = (line for line in logs if line.startswith("WARNING"))
    assert "the last good one stays in use" in told
    assert "2027-05-01" in told
    mount.put(second.pair)
    certificate.look()
    assert certificate.shown.pair == second.pair
    assert not certificate.problem


def test_files_that_are_not_there_are_waited_for(mount: Mount, logs: list[str]) -> None:
    certificate = followed(mount)
    certificate.look()
    certificate.look()
    problem = f"the certificate {mount.certificate} cannot be read: No such file or directory"
    assert certificate.problem == problem
    (told,) = logs
    assert "waiting for one" in told
    assert problem in told
    first = made()
    mount.put(first.pair)
    certificate.look()
    assert certificate.shown.pair == first.pair


def test_one_that_has_expired_is_shown_all_the_same_and_told_once(mount: Mount, logs: list[str]) -> None:
    mount.put(made(NOW - timedelta(days=366)).pair)
    ends: list[datetime] = []
    certificate = Certificate(files(mount.certificate, mount.key), observe=ends.append, clock=lambda: NOW)
    certificate.look()
    certificate.look()
    assert certificate.problem is None
    (told,) = (line for line in logs if line.startswith("WARNING"))
    assert "has expired" in told
    assert "2026-04-30" in told
    assert ends == [NOW - timedelta(days=1)]


def test_one_that_expires_while_it_is_shown_is_told(mount: Mount, logs: list[str]) -> None:
    mount.put(made().pair)
    now = [NOW]
    certificate = Certificate(files(mount.certificate, mount.key), clock=lambda: now[0])
    certificate.look()
    assert not [line for line in logs if "expired" in line]
    now[0] += timedelta(days=366)
    certificate.look()
    assert [line for line in logs if "expired" in line]


def encrypted() -> bytes:
    form, secret = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(serialization.Encoding.PEM, form, secret)


@pytest.mark.parametrize("change", ["empty", "cut", "no key", "der", "encrypted", "swapped"])
def test_what_is_no_pair_is_refused_without_a_word_of_the_key(change: str) -> None:
    pair = made().pair
    body = b"".join(pair.key.splitlines()[1:-1])
    broken = {
        "empty": KeyPair(b"", b""),
        "cut": KeyPair(pair.certificate[:200], pair.key),
        "no key": KeyPair(pair.certificate, b""),
        "der": KeyPair(ssl.PEM_cert_to_DER_cert(pair.certificate.decode()), pair.key),
        "encrypted": KeyPair(pair.certificate, encrypted()),
        "swapped": KeyPair(pair.key, pair.certificate[:100]),
    }[change]
    with pytest.raises(UnusableError) as caught:
        load(broken)
    assert str(caught.value).startswith("the certificate")
    assert body[:20].decode() not in str(caught.value)


def test_only_present_versions_of_tls_are_spoken() -> None:
    assert load(made().pair).context.minimum_version == ssl.TLSVersion.TLSv1_2
