"""Where the API server is and who we are to it, as kr8s loads it from a kubeconfig or from the pod's account.

Called by `door.py`. The order is controller-runtime's: the kubeconfig that is named, else $KUBECONFIG, else
the account of the pod, else ~/.kube/config. Invariants: nothing that stands in a kubeconfig gets into an
error or a log; and no secret stays behind in a temporary file.
"""

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import anyio
import kr8s.asyncio
import orjson
from kr8s._config import KubeConfig
from loguru import logger
from msgspec import Struct

from controller.runtime.kubeconfig import CredentialsError, Object, standalone

__all__ = ["Credentials", "CredentialsError", "Login", "TokenFile"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_LOOK_INTERVAL_S = 1.0
_IN_CLUSTER: Object = {  # kr8s takes a context without a cluster for the account of the pod
    "current-context": "in-cluster",
    "contexts": [{"name": "in-cluster", "context": {"cluster": "", "user": ""}}],
}


class TokenFile:
    """A file with a token, which is replaced from time to time.

    Attributes:
        path: Of the file.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = monotonic) -> None:
        """Reads nothing yet.

        Args:
            path: Of the file.
            clock: Seconds; the file is looked at once a second at most.
        """
        self.path = path
        self._clock = clock
        self._looked_s = float("-inf")
        self._seen: tuple[int, int, int] | None = None
        self._missing = False

    def changed(self) -> str | None:
        """The token, if the file is another one than at the last call; None also if there is none in it."""
        now_s = self._clock()
        if now_s < self._looked_s + _LOOK_INTERVAL_S:
            return None
        self._looked_s = now_s
        try:
            found = self.path.stat()
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen == self._seen:
                return None
            token = _token(self.path.read_text(encoding="ascii"), str(self.path))
        except (OSError, ValueError) as error:
            if not self._missing:
                log = logger.bind(file=str(self.path), error=type(error).__name__)
                log.warning("The file of the token cannot be read; the last token stays in use")
            self._missing, self._seen = True, None
            return None
        self._missing, self._seen = False, seen
        return token or None


class Login(Struct, frozen=True):
    """Credentials as they were loaded.

    Attributes:
        api: By what requests are sent; it has no session yet.
        server: URL of the API server.
        proxy: URL of the proxy that the kubeconfig names, or None.
        token: The bearer token, or None.
        token_file: Where the token is renewed, or None.
        certificate: Contents of all certificates and keys: when they differ, connections must be made anew.
        tls: The TLS context; True for the system's trust.
        namespace: The one that the context, or the pod, is in; `default` if it says none.
    """

    api: kr8s.asyncio.Api
    server: str
    proxy: str | None
    token: str | None
    token_file: TokenFile | None
    certificate: tuple[bytes, ...]
    tls: ssl.SSLContext | bool
    namespace: str


class Credentials:
    """Loads credentials, each time anew."""

    def __init__(
        self, kubeconfig: str = "", *, context: str = "", service_account: Path = SERVICE_ACCOUNT
    ) -> None:
        """Loads nothing yet.

        Args:
            kubeconfig: Path; empty means the order that the module describes.
            context: Of the kubeconfig; empty means its current one.
            service_account: Where a pod finds its account.
        """
        self._kubeconfig = kubeconfig
        self._context = context
        self._service_account = service_account
        self._chosen: list[Path] | None = None

    async def load(self) -> Login:
        """Loads them, later from where they came at first; runs the command that a kubeconfig may name.

        Raises:
            CredentialsError: There are none, or they are broken.
        """
        where, problem = self._kubeconfig or "the kubeconfig", ""
        try:
            paths = self._paths() if self._chosen is None else self._chosen
            where = (
                " or ".join(str(path) for path in paths) or f"the service account in {self._service_account}"
            )
            login = await (self._of_kubeconfigs(paths, where) if paths else self._of_account(where))
            self._chosen = paths
            return login
        except CredentialsError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 -- kr8s trips over broken credentials in many ways
            problem = _problem(error, where)
        # Raised here, so that the first error is no part of it: its text may hold a secret.
        raise CredentialsError(f"the credentials cannot be loaded: {problem}")

    async def _of_kubeconfigs(self, paths: list[Path], where: str) -> Login:
        configs = [(path, await _read(path)) for path in paths]
        with _temporary() as directory:
            config = standalone(configs, directory, self._context)
            token_file = config["users"][0]["user"].get("tokenFile", "")
            return await self._login(config, TokenFile(Path(token_file)) if token_file else None, where)

    async def _of_account(self, where: str) -> Login:
        """Writes nothing: a pod need not have a place for it."""
        return await self._login(_IN_CLUSTER, TokenFile(self._service_account / "token"), where)

    def _paths(self) -> list[Path]:
        """The kubeconfigs to read; none means the account of the pod."""
        if self._kubeconfig:
            path = Path(self._kubeconfig).expanduser()
            if not os.path.lexists(path):
                raise CredentialsError(f"kubeconfig {path} does not exist")
            return [path]
        listed = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
        if listed:
            found = [path for part in listed if (path := Path(part).expanduser()).exists()]
            if not found:
                raise CredentialsError(f"KUBECONFIG names no file that exists: {', '.join(listed)}")
            return found
        in_pod = os.environ.get("KUBERNETES_SERVICE_HOST") and (self._service_account / "token").exists()
        if in_pod and not self._context:
            return []
        home = _home()
        if home is None or not (home / ".kube" / "config").exists():
            raise CredentialsError("there is neither a kubeconfig nor a service account of a pod")
        return [home / ".kube" / "config"]

    async def _login(self, config: Object, token_file: TokenFile | None, where: str) -> Login:
        api = kr8s.asyncio.Api(
            kubeconfig=config, serviceaccount=str(self._service_account), bypass_factory=True
        )
        auth = api.auth
        try:
            await auth.reauthenticate()
            certificate = _contents(auth.client_cert_file, auth.client_key_file, auth.server_ca_file)
            if auth.client_key_file and b"ENCRYPTED" in certificate[1]:
                # OpenSSL would ask for the password.
                raise CredentialsError(f"{where}: the client key is encrypted")
            tls = await auth.ssl_context()  # type: ignore[no-untyped-call]
        finally:
            _remove_answer_of_command(config, auth.client_cert_file, auth.client_key_file)
        if isinstance(tls, ssl.SSLContext) and tls.verify_mode:
            # As in Go: who is trusted need be no root, it may be an authority that another one signed.
            tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            if not auth.server_ca_file:
                tls.load_default_certs()
        token = (token_file.changed() if token_file is not None else None) or _token(auth.token or "", where)
        namespace = str(auth.namespace) if config is not _IN_CLUSTER else self._own_namespace()
        return Login(
            api, str(auth.server), auth.proxy, token or None, token_file, certificate, tls, namespace
        )

    def _own_namespace(self) -> str:
        """That of the pod; kr8s does not read it."""
        try:
            return (self._service_account / "namespace").read_text().strip() or "default"
        except (OSError, ValueError):
            return "default"


def _home() -> Path | None:
    """The home directory of who runs this; None if nobody knows it."""
    try:
        return Path.home()
    except RuntimeError:
        return None


@contextmanager
def _temporary() -> Iterator[Path]:
    """A directory for what a kubeconfig embeds, for the length of the block.

    Raises:
        CredentialsError: There is no place for one.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="kai-binder-")
    except OSError as error:
        text = f"a kubeconfig needs a place for temporary files, and there is none: {error.strerror}"
        raise CredentialsError(text) from None
    with made as directory:
        yield Path(directory)


async def _read(path: Path) -> object:
    """A kubeconfig as JSON knows it: YAML has dates, which kr8s cannot take."""
    if not await anyio.Path(path).exists():
        raise CredentialsError(f"{path} does not exist")
    config = await KubeConfig(path)
    return orjson.loads(orjson.dumps(config.raw, option=orjson.OPT_NON_STR_KEYS))


def _remove_answer_of_command(config: Object, *files: object) -> None:
    """Removes the files that kr8s made of the answer of an exec command: it counts as embedded."""
    for user in config.get("users", ()):
        if "client-certificate-data" in user["user"]:
            for file in files:
                if file:
                    Path(str(file)).unlink(missing_ok=True)


def _token(text: str, where: str) -> str:
    """The token as it may stand in a header."""
    token = str(text).strip()
    if not token.isascii() or not token.isprintable():
        raise CredentialsError(f"{where}: the token has characters that no token has")
    return token


def _contents(*files: object) -> tuple[bytes, ...]:
    return tuple(Path(str(file)).read_bytes() for file in files if file)


def _problem(error: Exception, where: str) -> str:
    """What went wrong and where, without what was read there."""
    mark = getattr(error, "problem_mark", None)
    line = f", line {mark.line + 1}" if mark is not None else ""
    reason = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
    return f"{where}{line}: {type(error).__name__}{reason}"
