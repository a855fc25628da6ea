"""What to do about volumes and resource claims."""

from collections.abc import Mapping

from controller.explain.remedies_bind import Final, Remedy
from controller.kai.reasons import Reason

_CLAIM = "kubectl describe pvc <claim> -n <namespace>"
_ELSEWHERE = "Else the scheduler has to choose another node: delete the request."

STORAGE: Mapping[str, Remedy] = {
    Reason.CLAIM_NOT_FOUND: Remedy(
        "False",
        "A claim of the pod does not exist.",
        ("Make the claim that the message names, or correct its name in what the pod is made from.",),
    ),
    Reason.CLAIM_UNBOUND: Remedy(
        "False",
        "A PersistentVolumeClaim of the pod is not bound and the binder cannot have it bound, or it "
        "has lost its "
        "volume; the message says why.",
        (
            f"See what holds the claim up: {_CLAIM}",
            "A class that binds at once needs a volume that fits; without a class, a default StorageClass.",
            "A claim that has lost its volume is to be made anew, from a backup if need be.",
        ),
    ),
    Reason.CLAIM_REPLACED: Remedy(
        "False",
        "A claim was deleted and made anew while it was being bound.",
        ("Nothing: the next attempt takes the new one. Find out who replaced it if it happens again.",),
    ),
    Reason.CLAIM_NOT_OWNED: Remedy(
        "False",
        "A claim was made for another pod.",
        (
            "Delete the claim that the message names, if nobody needs it; the right one is made for the pod.",
            "Else make the pod anew under another name.",
        ),
    ),
    Reason.CLAIM_TERMINATING: Remedy(
        "False",
        "A claim is being deleted.",
        (
            "Wait until it is gone and make it anew.",
            "If it stays, see which pods still use it, and its finalizers.",
        ),
    ),
    Reason.CLAIM_UNALLOCATED: Remedy(
        "False",
        "The request brings no allocation for a resource claim that has none.",
        ("Have the scheduler decide again: it has to allocate the claim.",),
    ),
    Reason.CLAIM_FULL: Remedy(
        "False",
        "A resource claim is reserved for as many pods as it may be.",
        ("End pods that use the claim, or have this one use another claim: make it anew.",),
    ),
    Reason.ALLOCATION_CONFLICT: Remedy(
        "False",
        "A resource claim has other devices, or devices of another node; or another claim has its device.",
        (
            "Have the scheduler decide again, which then sees what each claim has: delete the request.",
            "Or end the pods that the claim is reserved for which has the devices, and it is freed.",
        ),
    ),
    Reason.DEVICE_NOT_READY: Remedy(
        "False",
        "The driver of a device says that it cannot be used.",
        (
            "See the device's conditions: kubectl get resourceclaim <claim> -n <namespace> -o yaml",
            "Mend the device or its driver on node <node>; else the scheduler has to choose another device.",
        ),
        final=Final.ALWAYS,
    ),
    Reason.VOLUME_NOT_FOUND: Remedy(
        "False",
        "A volume that a claim is bound to does not exist.",
        ("Make the volume that the message names again, or the claim anew.",),
    ),
    Reason.VOLUME_UNREACHABLE: Remedy(
        "False",
        "A volume's node affinity excludes the chosen node; the message has it.",
        (
            "The pod must go to a node that reaches the volume: have the scheduler decide again.",
            "If that does not help, the pod's own node selectors exclude all those nodes.",
        ),
    ),
    Reason.VOLUME_TAKEN: Remedy(
        "False",
        "A volume was given to another claim meanwhile.",
        ("Nothing: the next attempt looks for another volume. Make more volumes if there is none.",),
    ),
    Reason.NO_FITTING_VOLUME: Remedy(
        "False",
        "No volume fits a claim, and none can be provisioned for the node.",
        (
            "Make a volume of the class, the size and the access modes that the message has, for "
            "node <node>; or "
            "give the claim a class that can provision.",
            _ELSEWHERE,
        ),
    ),
    Reason.PROVISIONING_REFUSED: Remedy(
        "False",
        "The provisioner gave up on the chosen node.",
        (f"See why, in the events of the claim: {_CLAIM}", _ELSEWHERE),
    ),
    Reason.BIND_TIMEOUT: Remedy(
        "False",
        "Volumes or devices were not ready within bindTimeoutSeconds.",
        (
            f"See whether the provisioner or driver that the message names works, and the claim's "
            f"events: {_CLAIM}",
            "If it is only slow, give it more time: argument bindTimeoutSeconds of the plugin.",
        ),
    ),
}
