"""An authority that another one signed, as in clusters whose own a company's vouches for."""

from pathlib import Path

from controlplane import pki
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from controller.admission.tls import KeyPair


def issued(ca: Path) -> KeyPair:
    """Writes the authority to this file, without the one that signed it.

    Returns:
        Certificate and key of a server, signed by it.
    """
    root_key, ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    authority = (
        pki._builder("intermediate", pki._name("root"), ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(pki._usage(signs_certificates=True), critical=True)
        .sign(root_key, hashes.SHA256())
    )
    server = pki._server(server_key, authority, ca_key)
    ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return KeyPair(server.public_bytes(serialization.Encoding.PEM), pki._pem(server_key))
