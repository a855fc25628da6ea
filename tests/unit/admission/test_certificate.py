"""Certificates of our own making: what they are for, who trusts them, when it is time for another."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from msgspec.structs import replace

from controller.admission.certificate import VALID_FOR, Issued, is_ours, issue, names_of, why_another
from controller.admission.tls import KeyPair

NOW = datetime(2026, 5, 1, tzinfo=UTC)
NAMES = names_of("webhook", "team")


def authorities(issued: Issued) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(issued.authorities)


def test_it_is_for_the_names_of_the_service() -> None:
    assert "webhook.team.svc" in NAMES, "by this one an API server calls"
    certificate = x509.load_pem_x509_certificate(issue(NAMES, NOW).pair.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == NAMES


def test_the_authority_signed_it_and_nobody_keeps_its_key() -> None:
    issued = issue(NAMES, NOW)
    (authority,) = authorities(issued)
    certificate = x509.load_pem_x509_certificate(issued.pair.certificate)
    certificate.verify_directly_issued_by(authority)
    assert issued.pair.key.count(b"PRIVATE KEY") == 2, "one key, the server's, from its begin to its end"
    assert b"PRIVATE" not in issued.authorities + issued.pair.certificate


def test_the_authority_before_stays_trusted_and_no_other() -> None:
    first = issue(NAMES, NOW)
    second = issue(NAMES, NOW, before=first.authorities)
    third = issue(NAMES, NOW, before=second.authorities)
    assert authorities(second)[1:] == authorities(first)
    assert authorities(third)[1:] == authorities(second)[:1]
    assert len(authorities(issue(NAMES, NOW, before=b"nonsense"))) == 1


@pytest.mark.parametrize(("days", "another"), [(0, False), (240, False), (245, True), (366, True)])
def test_another_is_made_well_before_the_end(days: int, another: bool) -> None:
    why = why_another(issue(NAMES, NOW), NAMES, NOW + timedelta(days=days))
    assert (why is not None) == another
    if why is not None:
        assert (NOW + VALID_FOR).isoformat() in why


def test_why_another_is_needed_is_said() -> None:
    one, other = issue(NAMES, NOW), issue(NAMES, NOW)

    def why(issued: Issued, names: list[str] = NAMES) -> str | None:
        return why_another(issued, names, NOW)

    assert why(one) is None
    assert why(issue(NAMES, NOW, before=one.authorities)) is None
    assert why(one, ["elsewhere.team.svc"]) == "it is not for elsewhere.team.svc"
    assert why(replace(one, authorities=other.authorities)) == "its authority is another one"
    assert why(replace(one, pair=KeyPair(one.pair.certificate, other.pair.key))) == "its key is another one's"
    assert why(replace(one, pair=KeyPair(one.pair.certificate, b"no key"))) == "its key cannot be read"
    assert why(Issued(b"", KeyPair(b"", b""))) == "it cannot be read"


def test_our_own_bundle_is_known_again() -> None:
    one = issue(NAMES, NOW)
    two = issue(NAMES, NOW, before=one.authorities)
    assert is_ours(one.authorities)
    assert is_ours(two.authorities)
    assert not is_ours(one.pair.certificate), "no authority"
    assert not is_ours(b"")
    assert not is_ours(b"nonsense")
    assert not is_ours(one.authorities + one.pair.certificate)
