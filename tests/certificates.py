"""A Secret with a certificate, as the kubelet mounts it."""

from pathlib import Path

from controller.admission.tls import KeyPair


class Mount:
    """Two links to files in a folder that is swapped as a whole.

    Attributes:
        certificate: Path of the certificate, whether it is there or not.
        key: Path of its key.
    """

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self._folder = folder
        self._versions = 0

    def put(self, pair: KeyPair) -> None:
        """Swaps what is there for this pair."""
        self._versions += 1
        version = self._folder / f"..{self._versions}"
        version.mkdir(parents=True)
        (version / "tls.crt").write_bytes(pair.certificate)
        (version / "tls.key").write_bytes(pair.key)
        new = self._folder / "..data_tmp"
        new.symlink_to(version.name)
        new.rename(self._folder / "..data")
        for path in (self.certificate, self.key):
            if not path.is_symlink():
                path.symlink_to(Path("..data") / path.name)
