"""The certificate of the webhook's own making, under the rights that are shipped for it."""

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import pytest
import yaml
from controlplane import ControlPlane, RequestError
from cryptography import x509
from loguru import logger

from controller.admission.certificate import Issued, issue, names_of
from controller.admission.selfsigned import Maker, Pace, Place
from controller.admission.tls import UnusableError
from controller.runtime.client import Client, ClientOptions, Object
from tests.cluster import MERGE, ROOT
from tests.polling import eventually, wait_until
from tests.webhook import PATHS, Users, Webhook, Webhooks, apply, configurations, remove, user_pod

NAMESPACE, ACCOUNT = "kai-scheduler", "kai-binder-admission"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
SECRET = f"{SECRETS}/kai-binder-admission-certificate"
LOCAL = "--webhook-service-name=localhost"
"""The API server of these tests reaches no Service, but every name that a certificate is for."""
PLACE = Place(NAMESPACE, "localhost", "kai-binder-admission-certificate", "kai-binder-admission")
NAMES = names_of("localhost", NAMESPACE)
HURRY = Pace(again=0.05, look=0.05, spread=0.3)
OWNED = {"app.kubernetes.io/managed-by": "kai-binder-admission"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def rights(control_plane: ControlPlane) -> None:
    """The account, and what the component self-signed adds to it."""
    control_plane.kubectl("apply", "-f", str(ROOT / "config/admission/service_account.yaml"))
    for name in ("role.yaml", "cluster_role.yaml"):
        control_plane.kubectl("apply", "-f", str(ROOT / "config/admission/self-signed" / name))


@pytest.fixture
def kubeconfig(control_plane: ControlPlane) -> Path:
    return control_plane.service_account_kubeconfig(NAMESPACE, ACCOUNT)


@pytest.fixture(autouse=True)
def nothing_left(control_plane: ControlPlane) -> Iterator[None]:
    """Neither a Secret nor a configuration outlives a test."""
    install(control_plane)
    yield
    remove(control_plane)
    delete(control_plane)


def install(plane: ControlPlane) -> None:
    """Applies the Secret as it is shipped."""
    plane.kubectl("apply", "-f", str(ROOT / "config/admission/self-signed/secret.yaml"))


def delete(plane: ControlPlane) -> None:
    try:
        plane.request("DELETE", SECRET)
    except RequestError as error:
        if error.status != 404:
            raise


def bundles(plane: ControlPlane) -> list[bytes]:
    """Whom the API server trusts, by each configuration."""
    found = []
    for path in PATHS.values():
        webhooks = plane.request("GET", f"{path}/kai-binder-admission")["webhooks"]
        (only,) = {webhook["clientConfig"].get("caBundle", "") for webhook in webhooks}
        found.append(base64.b64decode(only))
    return found


def secret(plane: ControlPlane) -> dict[str, bytes]:
    """What is kept; nothing while there is no Secret."""
    for item in plane.request("GET", SECRETS)["items"]:
        if item["metadata"]["name"] == SECRET.rpartition("/")[2] and item.get("data"):
            return {name: base64.b64decode(value) for name, value in item["data"].items()}
    return {"ca.crt": b"", "tls.crt": b"", "tls.key": b""}


def shown(maker: Maker) -> bytes:
    """The certificate that a replica shows; empty while there is none."""
    try:
        return maker.read().certificate
    except UnusableError:
        return b""


def trusted(plane: ControlPlane) -> bool:
    """Whether there is a certificate that the API server trusts by both configurations."""
    authorities = secret(plane)["ca.crt"]
    return bool(authorities) and bundles(plane) == [authorities] * 2


def keep(plane: ControlPlane, issued: Issued, labels: dict[str, str]) -> None:
    """Puts a certificate into the Secret."""
    content = zip(
        ("ca.crt", "tls.crt", "tls.key"),
        (issued.authorities, issued.pair.certificate, issued.pair.key),
        strict=True,
    )
    data = {name: base64.b64encode(value).decode() for name, value in content}
    delete(plane)
    metadata = {"name": SECRET.rpartition("/")[2], "labels": labels}
    plane.request("POST", SECRETS, {"metadata": metadata, "type": "kubernetes.io/tls", "data": data})


def count(pem: bytes) -> int:
    return len(x509.load_pem_x509_certificates(pem))


def test_two_replicas_that_start_together_agree(
    control_plane: ControlPlane, users: Users, webhooks: Webhooks, kubeconfig: Path
) -> None:
    """Without any key of anybody's: from the manifests to a pod that is prepared."""
    flags = (LOCAL, "--binder-metrics-url=")
    pair = [webhooks.make(*flags, kubeconfig=kubeconfig).start(ready=False) for _ in range(2)]
    apply(control_plane, configurations(pair[0].port, None, "localhost"))
    for webhook in pair:
        webhook.wait_until_ready()

    wait_until(lambda: trusted(control_plane))
    for number, webhook in enumerate(pair):
        apply(control_plane, configurations(webhook.port, None, "localhost"))
        wait_until(lambda: trusted(control_plane))  # a kubectl apply without a bundle takes none away

        def prepared(name: str = f"a{number}", by: Webhook = webhook) -> bool:
            users.apply(user_pod(name, {"gpu-fraction": "0.5"}))
            return bool(by.counts())

        wait_until(prepared)
    made = [webhook.log.count("A self-signed certificate was made") for webhook in pair]
    assert sum(made) == 1, "who came second took what was there"
    kept = secret(control_plane)
    install(control_plane)
    assert secret(control_plane) == kept, "applied again, it keeps what is in it"


def test_the_account_may_create_no_secret(kubeconfig: Path, control_plane: ControlPlane) -> None:
    """One of the type for tokens would give it those of another account."""
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET.rpartition("/")[2]}}
    delete(control_plane)
    flags = (f"--kubeconfig={kubeconfig}", "--namespace", NAMESPACE)
    said = control_plane.kubectl(*flags, "create", "-f", "-", input=yaml.safe_dump(body), check=False)
    assert "cannot create resource" in said


@pytest.mark.anyio
async def test_a_secret_that_is_deleted_breaks_no_trust(
    control_plane: ControlPlane, kubeconfig: Path
) -> None:
    """Until it is installed again all goes on; then the authority before stays trusted beside the new one."""
    apply(control_plane, configurations(1, None, "localhost"))
    async with making(kubeconfig, [datetime.now(UTC)]) as (maker,):
        await eventually(lambda: trusted(control_plane))
        first, old = secret(control_plane), maker.read()
        delete(control_plane)
        await anyio.sleep(0.3)
        assert maker.read() == old
        install(control_plane)
        await eventually(lambda: trusted(control_plane))
        assert first["ca.crt"] in secret(control_plane)["ca.crt"]
        await eventually(
            lambda: maker.read().certificate == secret(control_plane)["tls.crt"] != first["tls.crt"]
        )
    delete(control_plane)
    install(control_plane)
    second = bundles(control_plane)[0]
    async with making(kubeconfig, [datetime.now(UTC)]):  # another process: it goes by what is trusted
        await eventually(lambda: trusted(control_plane) and bundles(control_plane)[0] != second)
        assert count(secret(control_plane)["ca.crt"]) == 2
        assert second.startswith(secret(control_plane)["ca.crt"].partition(b"-----END CERTIFICATE-----\n")[2])


@pytest.mark.anyio
async def test_a_renewed_one_is_shown_before_the_old_one_ends_whatever_stands_in_the_way(
    control_plane: ControlPlane, kubeconfig: Path
) -> None:
    apply(control_plane, configurations(1, None, "localhost"))
    now = [datetime.now(UTC)]
    async with making(kubeconfig, now) as (maker,):
        await eventually(lambda: trusted(control_plane))
        old = maker.read()
        control_plane.request("DELETE", f"{PATHS['ValidatingWebhookConfiguration']}/kai-binder-admission")
        now[0] += timedelta(days=300)
        await eventually(lambda: secret(control_plane)["tls.crt"] != old.certificate)
        await anyio.sleep(0.6)
        assert maker.read() == old, "there is time"
        now[0] += timedelta(days=40)
        await eventually(lambda: maker.read().certificate == secret(control_plane)["tls.crt"])


def test_missing_rights_are_named(control_plane: ControlPlane, webhooks: Webhooks) -> None:
    control_plane.kubectl("create", "serviceaccount", "rightless", "--namespace", NAMESPACE)
    rightless = control_plane.service_account_kubeconfig(NAMESPACE, "rightless")
    webhook = webhooks.make(LOCAL, "--binder-metrics-url=", kubeconfig=rightless).start(ready=False)
    words = 'cannot get resource \\"secrets\\" in API group \\"\\" in the namespace \\"kai-scheduler\\"'
    wait_until(lambda: words in webhook.log, within_s=30)
    assert webhook.answers("readyz") == 503
    assert webhook.answers("healthz") == 200
    assert webhook.stop() == 0


@asynccontextmanager
async def making(kubeconfig: Path, *clocks: list[datetime]) -> AsyncIterator[list[Maker]]:
    """Makers that look all the time, each by a clock of its own."""
    client = await Client.connect(ClientOptions(kubeconfig=str(kubeconfig), qps=0))
    makers = [Maker(PLACE, HURRY, lambda clock=clock: clock[0]) for clock in clocks]  # type: ignore[misc]
    try:
        async with anyio.create_task_group() as tasks:
            for maker in makers:
                tasks.start_soon(maker.run, client)
            yield makers
            tasks.cancel_scope.cancel()
    finally:
        await client.close()


@pytest.mark.anyio
async def test_it_is_renewed_well_before_its_end_and_the_old_one_stays_trusted(
    control_plane: ControlPlane, kubeconfig: Path
) -> None:
    """Two replicas: both go over to the new one, and only once the API server trusts it."""
    apply(control_plane, configurations(1, None, "localhost"))
    now = [datetime.now(UTC)]
    async with making(kubeconfig, now, now) as makers:
        await eventually(lambda: trusted(control_plane))
        first, old = secret(control_plane), makers[0].read()
        assert [maker.read() for maker in makers] == [old, old]

        now[0] += timedelta(days=300)
        await eventually(lambda: secret(control_plane) != first)
        second = secret(control_plane)
        assert count(second["ca.crt"]) == 2
        await eventually(lambda: [maker.read().certificate for maker in makers] == [second["tls.crt"]] * 2)
        assert bundles(control_plane) == [second["ca.crt"]] * 2
        assert first["ca.crt"] in second["ca.crt"]
        assert secret(control_plane) == second, "one renewal is enough for both"


@pytest.mark.anyio
async def test_a_secret_that_was_spoiled_is_made_anew(control_plane: ControlPlane, kubeconfig: Path) -> None:
    issued = issue(NAMES, datetime.now(UTC))
    keep(control_plane, Issued(b"nonsense", issued.pair), OWNED)
    apply(control_plane, configurations(1, None, "localhost"))
    async with making(kubeconfig, [datetime.now(UTC)]):
        await eventually(lambda: trusted(control_plane))
    assert count(secret(control_plane)["ca.crt"]) == 1


async def told(kubeconfig: Path, words: str) -> list[str]:
    """What is logged until these words come, and for a while after."""
    lines: list[str] = []
    sink = logger.add(lines.append, format="{message} {extra}")
    async with making(kubeconfig, [datetime.now(UTC)]):
        await eventually(lambda: words in "".join(lines))
        before = len(lines)
        await anyio.sleep(0.5)
        assert len(lines) == before, "it is told once"
    logger.remove(sink)
    return lines


@pytest.mark.anyio
async def test_a_bundle_that_somebody_else_has_set_is_left_alone(
    control_plane: ControlPlane, kubeconfig: Path
) -> None:
    theirs = control_plane.ca_file.read_bytes()
    apply(control_plane, configurations(1, theirs, "localhost"))
    lines = await told(kubeconfig, "somebody else has set the caBundle of validate.pods")
    assert "mutatingwebhookconfigurations kai-binder-admission" in "".join(lines)
    assert bundles(control_plane) == [theirs, theirs]


@pytest.mark.anyio
async def test_what_cert_manager_cares_for_is_left_alone(
    control_plane: ControlPlane, kubeconfig: Path
) -> None:
    items: list[Object] = configurations(1, None, "localhost")
    for item in items:
        item["metadata"]["annotations"] = {"cert-manager.io/inject-ca-from": "kai-scheduler/a"}
    apply(control_plane, items)
    await told(kubeconfig, "is cert-manager's")
    assert bundles(control_plane) == [b"", b""]


@pytest.mark.anyio
async def test_a_secret_of_somebody_else_is_left_alone(control_plane: ControlPlane, kubeconfig: Path) -> None:
    old = issue(NAMES, datetime.now(UTC) - timedelta(days=360))
    keep(control_plane, old, {})
    apply(control_plane, configurations(1, None, "localhost"))
    lines = await told(kubeconfig, "is not ours")
    assert "it ends " in "".join(lines)
    assert secret(control_plane)["tls.crt"] == old.pair.certificate


@pytest.mark.anyio
async def test_configurations_that_come_later_are_waited_for(
    control_plane: ControlPlane, kubeconfig: Path
) -> None:
    async with making(kubeconfig, [datetime.now(UTC)]) as (maker,):
        await eventually(lambda: shown(maker) == secret(control_plane)["tls.crt"] != b"")
        apply(control_plane, configurations(1, None, "localhost"))
        await eventually(lambda: trusted(control_plane))
        for path in PATHS.values():
            body = {"webhooks": None, "metadata": {"labels": {"a": "b"}}}
            control_plane.request("PATCH", f"{path}/kai-binder-admission", body, MERGE)
        apply(control_plane, configurations(1, None, "localhost"))
        await eventually(lambda: trusted(control_plane))
