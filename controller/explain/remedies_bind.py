"""What to do about requests, pods, nodes, plugins and the API server."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from controller.kai.reasons import Reason


class Final(Enum):
    """Whether a failure ends its request, however many attempts are left."""

    NEVER = ""
    AT_TIMES = "Final at times."
    ALWAYS = "Final."


class Remedy(Struct, frozen=True):
    """An entry of the table.

    Attributes:
        status: Of the condition that has this reason: True, False or Unknown.
        means: What it means.
        steps: What to do, in order; none where nothing is to be done.
        again: Whether it helps to have the request tried again once the steps are done.
        final: Whether no further attempt of the request could end better, so that none is made.
    """

    status: str
    means: str
    steps: tuple[str, ...] = ()
    again: bool = True
    final: Final = Final.NEVER


BIND: Mapping[str, Remedy] = {
    Reason.RECONCILED: Remedy("True", "The step is done, or was found done.", again=False),
    Reason.NOT_APPLICABLE: Remedy("True", "This request has nothing for this plugin.", again=False),
    Reason.ALREADY_BOUND: Remedy(
        "True",
        "The step did not run to its end: the pod was on the chosen node already, or got there meanwhile.",
        again=False,
    ),
    Reason.WAITING: Remedy(
        "Unknown",
        "The step waits for somebody else; the message says for whom.",
        ("See whether the one that is waited for works.",),
        again=False,
    ),
    Reason.BLOCKED: Remedy(
        "Unknown",
        "Another step failed or waits; the message names it.",
        ("Look at that step.",),
        again=False,
    ),
    Reason.DEPENDENCY_NOT_MET: Remedy(
        "False",
        "The plugin needs another one that is disabled, missing, runs later or has failed.",
        (
            "Set what the message says on the binder, e.g. "
            "kubectl set env -n <binder-namespace> deployment/binder NAME=VALUE; or with KAI's "
            "operator in its Config.",
            "If the message says that another plugin failed, mend that one first.",
        ),
        final=Final.AT_TIMES,
    ),
    Reason.INVALID_REQUEST: Remedy(
        "False",
        "Fields of the request are empty or malformed; the message names each.",
        (
            "Correct the fields that the message names: kubectl edit bindrequest <request> -n <namespace>. "
            "Counting starts anew with that.",
            "If the scheduler wrote it so, its version and the CRD's do not fit together.",
        ),
        again=False,
        final=Final.ALWAYS,
    ),
    Reason.REQUEST_DELETED: Remedy(
        "False",
        "The request was deleted, or ended, while it was worked on.",
        ("Nothing: the scheduler makes another one if the pod still waits.",),
        again=False,
        final=Final.ALWAYS,
    ),
    Reason.REQUEST_CHANGED: Remedy(
        "False",
        "The spec was changed while it was worked on.",
        ("Nothing: the new spec is taken up at once.",),
        again=False,
    ),
    Reason.POD_NOT_FOUND: Remedy(
        "False",
        "There is no pod of this name.",
        (
            "If the pod was deleted, there is nothing to do; the request goes with it, or delete it: "
            "kubectl delete bindrequest <request> -n <namespace>",
            "If it should be there, see why its owner does not make it: kubectl get events -n <namespace>",
        ),
        again=False,
        final=Final.AT_TIMES,
    ),
    Reason.POD_REPLACED: Remedy(
        "False",
        "The request was made for another pod of the same name: its owner's uid differs.",
        (
            "Delete the request, so that the scheduler decides for the present pod: "
            "kubectl delete bindrequest <request> -n <namespace>",
        ),
        again=False,
        final=Final.ALWAYS,
    ),
    Reason.POD_TERMINATING: Remedy(
        "False",
        "The pod is being deleted.",
        (
            "Wait until it is gone; its owner makes another one.",
            "If it stays, see what holds it: kubectl get pod <pod> -n <namespace> -o "
            "jsonpath='{.metadata.finalizers}'",
        ),
        again=False,
        final=Final.ALWAYS,
    ),
    Reason.POD_FINISHED: Remedy(
        "False",
        "The pod has ended.",
        ("Make a new pod; one that has ended is never bound.",),
        again=False,
        final=Final.ALWAYS,
    ),
    Reason.POD_GATED: Remedy(
        "False",
        "The pod has scheduling gates; the message names them.",
        (
            "Have the controller that set the gates take them off, or take spec.schedulingGates off by hand: "
            "kubectl edit pod <pod> -n <namespace>",
        ),
    ),
    Reason.ANNOTATIONS_TOO_LONG: Remedy(
        "False",
        "The pod's annotations leave no room for ours: no pod may have more than 256 KiB.",
        ("Take annotations off the pod: kubectl annotate pod <pod> -n <namespace> NAME-",),
    ),
    Reason.ALREADY_BOUND_ELSEWHERE: Remedy(
        "False",
        "The pod is on another node; the message names it.",
        (
            "The pod is bound, only not as this request wanted. Find out who bound it: two schedulers or two "
            "binders may work on the same pods.",
            "Delete the request: kubectl delete bindrequest <request> -n <namespace>",
        ),
        again=False,
        final=Final.ALWAYS,
    ),
    Reason.NODE_GONE: Remedy(
        "False",
        "The chosen node does not exist.",
        (
            "See whether node <node> comes back: kubectl get node <node>",
            "Else the scheduler has to choose another one.",
        ),
    ),
    Reason.UNSUPPORTED: Remedy(
        "False",
        "This version, or this cluster, cannot do it; the message says which.",
        (
            "If the API server lacks a kind, switch its API group on, e.g. resource.k8s.io for "
            "resource claims.",
            "Else take what it names out of the pod, and make the pod anew.",
        ),
    ),
    Reason.FORBIDDEN: Remedy(
        "False",
        "The API server refused for lack of rights, or by a quota or policy; the message has the request.",
        (
            "If the message says that the binder's account cannot do it, give it the rights: "
            "kubectl apply --server-side -k config/rbac; where KAI's operator runs the binder, "
            "-k config/overlays/operator. If it is our webhook's account, apply again the overlay that "
            "you installed it by, with your image in it.",
            "If it speaks of a quota or a policy, raise the quota or have the policy let it pass.",
        ),
    ),
    Reason.CONFLICT: Remedy(
        "False",
        "The API server refused because an object had changed meanwhile, again and again.",
        ("See who else writes the object that the message names; two binders may run.",),
    ),
    Reason.REJECTED: Remedy(
        "False",
        "The API server refused for another reason; the message has it.",
        ("Mend what the message names.",),
    ),
    Reason.SERVER_ERROR: Remedy(
        "False",
        "The API server failed to answer the request.",
        (
            "See whether the API server, and the webhooks that it asks, are well: kubectl get "
            "--raw='/readyz?verbose'",
        ),
    ),
    Reason.INTERNAL_ERROR: Remedy(
        "False",
        "A fault of the binder or of a plugin.",
        ("Take the trace from the log and report it: {log}",),
    ),
}
