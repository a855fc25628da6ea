"""The flags of the programs of a control plane, each odd one with its reason.

Pure; called by ``ControlPlane``, and by tests that switch versions off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.build import parse_minor
from controlplane.pki import Keys

# No kubelet renews the leases of the nodes here: these two would mark every node as lost and evict its pods.
CONTROLLERS = "*,-node-lifecycle-controller,-taint-eviction-controller"

CLAIMS = "resource.k8s.io"
BEFORE_V1 = {(1, 31): ("v1alpha3",), (1, 32): ("v1beta1",), (1, 33): ("v1beta2", "v1beta1")}
"""The best versions of device claims in these servers; all are off by default, and so is their gate."""
SINCE_V1 = ("v1", "v1beta2", "v1beta1")


def claim_versions(kubernetes: str) -> tuple[str, ...]:
    """The versions of resource.k8s.io in which a minor can serve device claims, best first.

    A server does not start if it is told to switch on or off a version that it does not know.
    """
    return BEFORE_V1.get(parse_minor(kubernetes), SINCE_V1)


def claims_config(kubernetes: str) -> dict[str, str]:
    """What --runtime-config must say so that a minor serves device claims."""
    versions = BEFORE_V1.get(parse_minor(kubernetes), ())
    return {f"{CLAIMS}/{version}": "true" for version in versions}


def claims_gate(kubernetes: str) -> list[str]:
    """The flag, of API server and controller manager, without which a minor ignores device claims."""
    wanted = parse_minor(kubernetes) in BEFORE_V1
    return ["--feature-gates=DynamicResourceAllocation=true"] if wanted else []


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the programs of one control plane listen and keep their files.

    Attributes:
        apiserver_port: The API server's, with TLS.
        etcd_port: Of etcd, for its clients.
        peer_port: Of etcd, for other members, though there are none.
        data: The folder for what is removed at the end.
        keys: The keys, in that folder.
    """

    apiserver_port: int
    etcd_port: int
    peer_port: int
    data: Path
    keys: Keys

    @property
    def etcd_url(self) -> str:
        """Where etcd serves the API server."""
        return f"http://127.0.0.1:{self.etcd_port}"

    @property
    def apiserver_url(self) -> str:
        """Where the API server serves everybody."""
        return f"https://127.0.0.1:{self.apiserver_port}"

    @property
    def tokens(self) -> Path:
        """The API server's table of static tokens."""
        return self.data / "tokens.csv"

    @property
    def audit_policy(self) -> Path:
        """What the API server writes to its audit log."""
        return self.data / "audit-policy.json"


def etcd_flags(layout: Layout) -> list[str]:
    """The flags of an etcd that is alone and whose data nobody needs afterwards."""
    peer = f"http://127.0.0.1:{layout.peer_port}"
    return [
        f"--data-dir={layout.data / 'etcd'}",
        f"--listen-client-urls={layout.etcd_url}",
        f"--advertise-client-urls={layout.etcd_url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        # Alone, it need not wait a second for the votes of others.
        "--heartbeat-interval=10",
        "--election-timeout=100",
        "--log-level=warn",
    ]


def apiserver_flags(layout: Layout, runtime_config: Mapping[str, str], audit_log: Path | None) -> list[str]:
    """The flags of an API server on the loopback address; rights and tokens work as in real life."""
    keys = layout.keys
    flags = [
        f"--etcd-servers={layout.etcd_url}",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.apiserver_port}",
        # Given, so that it looks for neither a default route nor the name of this host.
        "--advertise-address=127.0.0.1",
        "--external-hostname=127.0.0.1",
        # A loopback address is no valid endpoint: publishing it would fail again and again.
        "--endpoint-reconciler-type=none",
        f"--cert-dir={layout.data / 'pki'}",
        f"--tls-cert-file={keys.certificate}",
        f"--tls-private-key-file={keys.key}",
        f"--token-auth-file={layout.tokens}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={keys.service_account_key}",
        f"--service-account-signing-key-file={keys.service_account_key}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--allow-privileged=true",
        "--profiling=false",
    ]
    if audit_log is not None:
        flags += [f"--audit-policy-file={layout.audit_policy}", f"--audit-log-path={audit_log}"]
    if runtime_config:
        switches = ",".join(f"{group}={value}" for group, value in runtime_config.items())
        flags.append(f"--runtime-config={switches}")
    return flags


def controller_manager_flags(layout: Layout, kubeconfig: Path) -> list[str]:
    """The flags of a controller manager for a cluster without kubelets."""
    return [
        f"--kubeconfig={kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--use-service-account-credentials=false",
        f"--service-account-private-key-file={layout.keys.service_account_key}",
        f"--root-ca-file={layout.keys.ca}",
        f"--controllers={CONTROLLERS}",
        # Its default of 20 requests a second would make tests wait for claims and garbage collection.
        "--kube-api-qps=300",
        "--kube-api-burst=600",
        # A claim that it sees before the volume made for it would wait for the default of 15 s.
        "--pvclaimbinder-sync-period=2s",
        # It makes this folder when missing; the default is a place of the system.
        f"--flex-volume-plugin-dir={layout.data / 'flexvolume'}",
        "--profiling=false",
    ]


def with_overrides(flags: Sequence[str], more: Sequence[str]) -> list[str]:
    """The flags, less those that are given again in `more`: some add up instead of the last one winning."""
    given = {flag.partition("=")[0] for flag in more}
    return [*(flag for flag in flags if flag.partition("=")[0] not in given), *more]
