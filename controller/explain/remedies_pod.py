"""What to do about what no condition of a request says: no request, no binder, pods that cannot start."""

from collections.abc import Mapping

from controller.explain.remedies_bind import Remedy

_BINDER = "kubectl get pods,leases -n <binder-namespace>"

UNNAMED_DELETION = "kubectl delete pod <reservation>"
"""In a step that is told only where the pod is known."""

SITUATIONS: Mapping[str, Remedy] = {
    "NoRequest": Remedy(
        "",
        "The scheduler has not decided yet: there is no BindRequest for the pod.",
        (
            "See what the scheduler says of the pod: its condition PodScheduled and its events, above.",
            "See that KAI's scheduler runs: kubectl get pods -n <binder-namespace>",
        ),
    ),
    "OtherScheduler": Remedy(
        "",
        "The pod is for another scheduler, and the binder leaves it alone.",
        (
            "Ask that scheduler: its name is in spec.schedulerName, what it says in the pod's events.",
            "If KAI should schedule it, make the pod anew with schedulerName: kai-scheduler.",
        ),
    ),
    "NotTakenUp": Remedy(
        "",
        "No binder has taken the request up yet.",
        (f"See that the binder runs, and that one leads: {_BINDER}", "See its log: {log}"),
    ),
    "NoLeader": Remedy(
        "",
        "The Lease is held by nobody, or was not renewed in time, and nothing was done for the request: no "
        "binder leads, or one without --leader-elect has not got to it.",
        (f"See whether a binder runs: {_BINDER}", "See its log: {log}"),
    ),
    "RequestDeleting": Remedy(
        "",
        "The request is being deleted; nothing is done for it any more.",
        (
            "Wait until it is gone; the scheduler makes another one if the pod still waits.",
            "If it stays, see who holds it: kubectl get bindrequest <request> -n <namespace> "
            "-o jsonpath='{.metadata.finalizers}'",
        ),
    ),
    "SucceededUnbound": Remedy(
        "",
        "The request says that the pod was bound, and the pod has no node.",
        (
            "See whether it has one by now: kubectl get pod <pod> -n <namespace> -o wide",
            "If not, see who wrote the request's status: kubectl get bindrequest <request> -n <namespace> "
            "-o yaml --show-managed-fields",
        ),
        again=False,
    ),
    "RequestAside": Remedy(
        "",
        "Several requests name this pod. Each is worked on, one after the other.",
        ("Delete those that are left over: kubectl get bindrequests -n <namespace>",),
    ),
    "WaitingForReservation": Remedy(
        "",
        "The bind waits for a reservation pod to report its GPU.",
        (
            "See what holds it up: kubectl describe pod <reservation> -n <reservation-namespace>",
            "If it is Pending, see that the kubelet and the device plugin of node <node> work: "
            "kubectl describe node <node>",
        ),
    ),
    "WaitingForVolume": Remedy(
        "",
        "The bind waits for a volume.",
        (
            "See that the provisioner that the message names runs, and what it says: "
            "kubectl describe pvc <claim> -n <namespace>",
        ),
    ),
    "WaitingForDevices": Remedy(
        "",
        "The bind waits for devices of a resource claim.",
        (
            "See that the driver runs on node <node>: kubectl get resourceslices",
            "See the claim: kubectl get resourceclaim <claim> -n <namespace> -o yaml",
        ),
    ),
    "ImageOfReservation": Remedy(
        "",
        "The image of the reservation pod cannot be pulled, so that it never reports its GPU.",
        (
            "Name an image that node <node> can pull, by the binder's flag --resource-reservation-pod-image "
            "(now <image>); or give the service account of <reservation-namespace> a pull secret.",
            f"Delete the reservation pod, it is made anew: {UNNAMED_DELETION} -n <reservation-namespace>",
        ),
    ),
    "StartOfReservation": Remedy(
        "",
        "The container of the reservation pod cannot start, so that it never reports its GPU.",
        (
            "See why: kubectl describe pod <reservation> -n <reservation-namespace>; "
            "kubectl logs <reservation> -n <reservation-namespace> --previous",
            "See that the NVIDIA driver and runtime of node <node> work.",
        ),
    ),
    "Image": Remedy(
        "",
        "The pod is bound, but an image cannot be pulled.",
        ("Correct the image's name or the pull secret in what the pod is made from.",),
        again=False,
    ),
    "ContainerConfig": Remedy(
        "",
        "The pod is bound, but a container cannot be made: a ConfigMap, Secret or key that it reads "
        "is missing.",
        (
            "Make what the message names. If it is a ConfigMap of a share of a GPU, make the pod anew: "
            "the binder writes those only with the bind.",
        ),
        again=False,
    ),
    "Crashing": Remedy(
        "",
        "The pod is bound, but a container ends again and again.",
        ("See what it says: kubectl logs <pod> -n <namespace> --previous",),
        again=False,
    ),
    "NotRunning": Remedy(
        "",
        "The pod is bound, and the kubelet has not started it.",
        ("See that node <node> is ready: kubectl describe node <node>",),
        again=False,
    ),
}
"""By a word of our own."""
