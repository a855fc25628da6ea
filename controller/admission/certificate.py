"""A certificate of one's own making, for trials: how it is made, and when it is time for another.

Called by `selfsigned.py`, and pure. The authority signs one certificate, and its key is forgotten: nobody can
sign another in its name. A new certificate has a new authority; the old one is trusted beside it for as long
as others may still show what it signed.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from controller.admission.tls import KeyPair

AUTHORITY = "kai-binder-admission-ca"
"""The name of every authority made here, by which it is known again."""
VALID_FOR = timedelta(days=365)
_SKEW = timedelta(hours=1)


class Issued(Struct, frozen=True):
    """What was made.

    Attributes:
        authorities: PEM; who trusts these trusts the certificate, and the one before it.
        pair: The certificate and its key.
    """

    authorities: bytes
    pair: KeyPair


def names_of(service: str, namespace: str) -> list[str]:
    """The DNS names of a Service; the third is the one by which an API server calls."""
    return [
        service,
        f"{service}.{namespace}",
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
    ]


def issue(names: Sequence[str], now: datetime, before: bytes = b"") -> Issued:
    """Makes an authority and a certificate that it signs.

    Args:
        names: DNS names that the certificate is for.
        now: The present time.
        before: PEM of the authorities so far; the first of them stays trusted if it can be read.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY)])
    authority = (
        _builder(subject, subject, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kai-binder-admission")]), subject, key, now
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    trusted = b"".join(_pem(known) for known in (authority, *_read_all(before)[:1]))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Issued(trusted, KeyPair(_pem(certificate), private))


def why_another(issued: Issued, names: Sequence[str], now: datetime) -> str | None:
    """Why it is time for another certificate; None if this one will do. That is well before its end."""
    authorities, certificates = _read_all(issued.authorities), _read_all(issued.pair.certificate)
    if not authorities or not certificates:
        return "it cannot be read"
    certificate = certificates[0]
    try:
        certificate.verify_directly_issued_by(authorities[0])
    except (ValueError, TypeError, InvalidSignature):
        return "its authority is another one"
    try:
        key = serialization.load_pem_private_key(issued.pair.key, password=None)
    except (ValueError, TypeError):
        return "its key cannot be read"
    if key.public_key() != certificate.public_key():
        return "its key is another one's"
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if set(names) - set(found.get_values_for_type(x509.DNSName)):
        return f"it is not for {', '.join(names)}"
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now >= begin + (end - begin) * 2 / 3:
        return f"it ends {end.isoformat()}"
    return None


def is_ours(bundle: bytes) -> bool:
    """Whether all authorities of a bundle were made here, as far as their names tell."""
    found = _read_all(bundle)
    own = {known.subject.rfc4514_string() for known in found} == {f"CN={AUTHORITY}"}
    return own and all(known.subject == known.issuer for known in found)


def _read_all(pem: bytes) -> list[x509.Certificate]:
    """The certificates of a PEM; none if one of them cannot be read."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
