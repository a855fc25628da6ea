"""Pods that share GPUs on a real control plane: made as KAI's admission webhook and scheduler make them."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypedDict, Unpack
from uuid import uuid4

from controlplane import ControlPlane, RequestError
from kubelet import Answer, Kubelet, device_of

from controller.runtime.client import Object
from tests.cluster import MERGE, STRATEGIC, Cluster
from tests.objects import SCHEDULER
from tests.polling import wait_until

RESERVATIONS = "kai-resource-reservation"
SCALING = "kai-scale-adjust"
RESERVATION_PODS = f"/api/v1/namespaces/{RESERVATIONS}/pods"
GROUP_LABEL = "runai-gpu-group"
GPU_INDEX = "run.ai/reserve_for_gpu_index"
FRACTION = {"receivedResourceType": "Fraction"}

ORDER = ("GPUReserved", "VolumeBinding", "DynamicResources", "GPUSharing", "Bound")
"""Conditions of a request for a shared GPU, with the default plugins."""

Decide = Callable[[Object], Answer | None]


class PodOptions(TypedDict, total=False):
    """What may be said of a pod; see `shared_pod`."""

    fraction: str | None
    memory: str | None
    devices: str | None
    containers: Sequence[str]
    init: Sequence[str]
    target: str | None
    named: bool
    in_map: Sequence[str]
    config_map: str | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]


def shared_pod(name: str, **options: Unpack[PodOptions]) -> Object:
    """A pod as KAI's admission webhook leaves it.

    Args:
        name: Of the pod.
        **options: `fraction`, `memory` and `devices` are annotations; `target` is the container that gets the
            share (the first if it is not `named` in an annotation); `in_map` are the variables that it takes
            from the capabilities map, one by one; `config_map` is the prefix of both maps, None for no such
            annotation; `labels`, `annotations` and `spec` are added.
    """
    containers, init = list(options.get("containers", ("main",))), list(options.get("init", ()))
    target, prefix = options.get("target"), options.get("config_map", f"{name}-shared-gpu")
    asked = {
        "gpu-fraction": options.get("fraction", None if options.get("memory") else "0.5"),
        "gpu-memory": options.get("memory"),
        "gpu-fraction-num-devices": options.get("devices"),
        "gpu-fraction-container-name": target if options.get("named", True) else None,
        "runai/shared-gpu-configmap": prefix,
    }
    annotations = {key: value for key, value in asked.items() if value is not None}
    spec: Object = {"schedulerName": SCHEDULER, **options.get("spec", {})}
    spec["containers"] = [{"name": item, "image": "busybox"} for item in containers]
    if init:
        spec["initContainers"] = [{"name": item, "image": "busybox"} for item in init]
    wanted = target or containers[0]
    for mark, listed in (("i", spec.get("initContainers", [])), ("", spec["containers"])):
        for index, container in enumerate(listed):
            if container["name"] == wanted and prefix:
                _give(container, f"{prefix}-{mark}{index}", options.get("in_map", VARIABLES))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": dict(options.get("labels", {})),
            "annotations": {**annotations, **options.get("annotations", {})},
        },
        "spec": spec,
    }


VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION")


def _give(container: Object, config_map: str, variables: Sequence[str]) -> None:
    container["env"] = [
        {"name": name, "valueFrom": {"configMapKeyRef": {"name": config_map, "key": name}}}
        for name in variables
    ]
    container["envFrom"] = [{"configMapRef": {"name": f"{config_map}-evar", "optional": False}}]


def owner_of(pod: Object) -> list[Object]:
    """The ownerReferences of what belongs to a pod."""
    metadata = pod["metadata"]
    return [{"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}]


class Agents:
    """Decides, by GPU group, what becomes of a reservation pod; unless told otherwise it reports a device."""

    def __init__(self) -> None:
        self._decisions: dict[str, Decide] = {}
        self._lock = threading.Lock()

    def __call__(self, pod: Object) -> Answer | None:
        with self._lock:
            decide = self._decisions.get(group_of(pod), device_of)
        return decide(pod)

    def set(self, group: str, answer: Answer | Decide | None) -> None:
        """The answer for pods of this group from now on; None: nothing yet."""
        decide: Decide = answer if callable(answer) else lambda _: answer
        with self._lock:
            self._decisions[group] = decide

    def forget(self, group: str) -> None:
        """Has this group's agents answer as usual."""
        with self._lock:
            self._decisions.pop(group, None)


@contextmanager
def playing_agents(plane: ControlPlane) -> Iterator[Agents]:
    """Plays kubelet and reservation agent; tests say by group what it does."""
    agents = Agents()
    with Kubelet(plane, answer=agents):
        yield agents


def group_of(pod: Object) -> str:
    """The group that a reservation pod is for."""
    return str((pod["metadata"].get("labels") or {}).get(GROUP_LABEL, ""))


class Sharing(Cluster):
    """A namespace, and the reservation pods of the groups that are used in it.

    Attributes:
        agents: Decide what becomes of reservation pods.
    """

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        super().__init__(plane, namespace)
        self.agents = Agents()
        self.config_maps = f"/api/v1/namespaces/{namespace}/configmaps"

    @classmethod
    def beside(cls, plane: ControlPlane, agents: Agents) -> Self:
        """A fresh namespace, whose reservation pods these agents answer for."""
        made = cls.fresh(plane)
        made.agents = agents
        return made

    def group(self, name: str = "g") -> str:
        """A group that no other test has."""
        return f"{name}-{uuid4().hex[:12]}"

    def shared_pod(self, name: str, **options: Unpack[PodOptions]) -> Object:
        """Makes a pod; options as of the function of this name."""
        return self.plane.request("POST", self.pods, shared_pod(name, **options))

    def ask_share(
        self,
        name: str,
        node: str,
        *groups: str,
        owner: Object | None = None,
        portion: str = "0.50",
        **spec: object,
    ) -> Object:
        """Makes a request for shares of these groups' GPUs."""
        gpu = {"count": len(groups), "portion": portion}
        whole = {**FRACTION, "receivedGPU": gpu, "selectedGPUGroups": list(groups), **spec}
        return self.ask(name, node, owner=owner, **whole)

    def share(
        self,
        name: str,
        node: str,
        *groups: str,
        pod: PodOptions | None = None,
        portion: str = "0.50",
        **spec: object,
    ) -> Object:
        """Makes a pod and a request for it, as the scheduler would. Returns the pod."""
        options: PodOptions = {**(pod or {})}
        if len(groups) > 1:
            options.setdefault("devices", str(len(groups)))
        made = self.shared_pod(name, **options)
        self.ask_share(name, node, *groups, owner=made, portion=portion, **spec)
        return made

    def reservations(self, group: str) -> list[Object]:
        """The reservation pods of a group."""
        path = f"{RESERVATION_PODS}?labelSelector={GROUP_LABEL}%3D{group}"
        return list(self.plane.request("GET", path)["items"])

    def reservation(self, group: str) -> Object:
        """The one reservation pod of a group."""
        found = self.reservations(group)
        assert len(found) == 1, [pod["metadata"]["name"] for pod in found]
        return found[0]

    def device(self, group: str) -> str:
        """The device that a group's reservation pod has reported."""
        return str(self.reservation(group)["metadata"]["annotations"][GPU_INDEX])

    def make_reservation(
        self, name: str, node: str, group: str, *, device: str | None = None, **spec: object
    ) -> Object:
        """Makes a reservation pod as somebody else would."""
        metadata: Object = {"name": name, "labels": {"app": RESERVATIONS, GROUP_LABEL: group}}
        if device is not None:
            metadata["annotations"] = {GPU_INDEX: device}
        container = {"name": "resource-reservation", "image": "busybox"}
        body = {
            "metadata": metadata,
            "spec": {
                "nodeName": node,
                "serviceAccountName": RESERVATIONS,
                "containers": [container],
                **spec,
            },
        }
        return self.plane.request("POST", RESERVATION_PODS, body)

    def delete_reservations(self, group: str) -> None:
        """Removes the reservation pods of a group behind the binder's back."""
        for pod in self.reservations(group):
            self.plane.request("DELETE", f"{RESERVATION_PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")

    def wait_for_reservation(self, group: str, *, within_s: float = 10.0) -> Object:
        """Waits until there is one, and returns it."""
        return wait_until(lambda: self.reservation(group), within_s=within_s)

    def wait_until_freed(self, *groups: str, within_s: float = 10.0) -> None:
        """Waits until no reservation pod of these groups is left."""
        for group in groups:
            wait_until(lambda group=group: not self.reservations(group), within_s=within_s)  # type: ignore[misc]

    def config_map(self, name: str) -> Object:
        return self.plane.request("GET", f"{self.config_maps}/{name}")

    def data(self, name: str) -> dict[str, str]:
        """The data of a ConfigMap."""
        return dict(self.config_map(name).get("data") or {})

    def make_config_map(
        self, name: str, data: Mapping[str, str] | None, owners: Sequence[Object] = (), **fields: object
    ) -> Object:
        """Makes a ConfigMap as somebody else would."""
        body: Object = {"metadata": {"name": name, "ownerReferences": list(owners)}, **fields}
        if data is not None:
            body["data"] = dict(data)
        return self.plane.request("POST", self.config_maps, body)

    def all_config_maps(self) -> list[str]:
        """Names of the ConfigMaps, without the one that every namespace has."""
        names = [item["metadata"]["name"] for item in self.plane.request("GET", self.config_maps)["items"]]
        return sorted(name for name in names if name != "kube-root-ca.crt")

    def group_labels(self, name: str) -> dict[str, str]:
        """The labels of a pod that tie it to groups."""
        labels = self.get_pod(name)["metadata"].get("labels") or {}
        return {key: value for key, value in labels.items() if key.startswith(GROUP_LABEL)}

    def annotate(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Changes annotations of a pod, as its author may at any time."""
        body = {"metadata": {"annotations": dict(annotations)}}
        self.plane.request("PATCH", f"{self.pods}/{name}", body, MERGE)

    def set_phase(self, name: str, phase: str) -> None:
        """Plays the kubelet for a pod of a user."""
        self.patch_pod_status(name, {"phase": phase})

    def patch_status_of(self, path: str, status: Object) -> None:
        self.plane.request("PATCH", f"{path}/status", {"status": status}, STRATEGIC)

    def bind_scaling_pod(self, name: str, node: str) -> None:
        """Finds a node for a scaling pod."""
        body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
        path = f"/api/v1/namespaces/{SCALING}/pods/{name}/binding"
        self.plane.request("POST", path, {"apiVersion": "v1", "kind": "Binding", **body})

    def hold(self, path: str) -> None:
        """Puts a finalizer on an object, so that deleting it takes until `let_go`."""
        self.plane.request("PATCH", path, {"metadata": {"finalizers": ["example.com/hold"]}}, MERGE)

    def let_go(self, path: str) -> None:
        """Takes the finalizers off."""
        try:
            self.plane.request("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
        except RequestError as error:
            if error.status != 404:
                raise

    def delete_request(self, name: str) -> None:
        self.plane.request("DELETE", f"{self.requests}/{name}")

    def assert_nothing_left(self, name: str, *groups: str) -> None:
        """No trace of a failed bind: maps, labels, annotations, reservations."""
        self.assert_unbound(name)
        assert self.group_labels(name) == {}
        assert self.all_config_maps() == []
        self.wait_until_freed(*groups)


def groups_of(mode: str | None, *groups: str) -> dict[str, Any]:
    """Both fields, as the scheduler writes them (N-1)."""
    entries = [{"id": group, **({} if mode is None else {"computeSharingMode": mode})} for group in groups]
    return {"selectedGPUGroups": list(groups), "selectedFractionalGpuGroups": entries}


def refusal_of(cluster: Sharing, name: str, reason: str) -> str:
    """The message of a request that failed for this reason."""
    cluster.wait_for(name, "Failed")
    bound = cluster.conditions(name)["Bound"]
    assert bound["reason"] == reason, bound
    return str(bound["message"])


def ask_share_of(cluster: Sharing, name: str, node: str, spec: dict[str, Any], **options: Any) -> None:  # noqa: ANN401
    """Makes a pod, with options as of `shared_pod`, and a request for a share with this spec."""
    pod = cluster.shared_pod(name, **options)
    count = len(spec.get("selectedFractionalGpuGroups") or spec["selectedGPUGroups"])
    given = {"count": count, "portion": "0.50"}
    cluster.ask(name, node, owner=pod, receivedResourceType="Fraction", receivedGPU=given, **spec)
