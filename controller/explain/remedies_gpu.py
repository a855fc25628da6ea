"""What to do about shares of GPUs, their reservations and the limit of their memory."""

from collections.abc import Mapping

from controller.explain.remedies_bind import Final, Remedy
from controller.kai.reasons import Reason

_ANEW = "annotations of a pod that the scheduler has decided on help only with a new pod"
_RESERVATION = "kubectl describe pod <reservation> -n <reservation-namespace>"

GPU: Mapping[str, Remedy] = {
    Reason.INVALID_GPU_GROUP: Remedy(
        "False",
        "A GPU group is no legal label, or is named twice, or there are more groups than GPUs.",
        (
            "The scheduler chose the groups: have it decide again.",
            "If there are more groups than node <node> has GPUs, see whether its GPUs are all there: "
            "kubectl get node <node> -o jsonpath='{.status.capacity}'",
        ),
        final=Final.AT_TIMES,
    ),
    Reason.INVALID_GPU_CONFIG: Remedy(
        "False",
        "The pod does not say, or not so that it makes sense, which container or ConfigMaps its "
        "share is for, "
        "or how much memory the container may use.",
        (
            "See that KAI's admission webhook runs, since it writes that, and make the pod anew: "
            "kubectl get mutatingwebhookconfigurations",
            "If the message names an annotation of yours, correct it in what the pod is made from.",
        ),
        final=Final.ALWAYS,
    ),
    Reason.INVALID_PORTION: Remedy(
        "False",
        "The share is no number above 0 and at most 1.",
        (
            "Correct the annotation gpu-fraction in what the pod is made from, e.g. to '0.5', and make the "
            "pod anew.",
            "If it is spec.receivedGPU.portion that is wrong, correct that, in quotes as '0.50': "
            "kubectl edit bindrequest <request> -n <namespace>. Counting starts anew with that.",
        ),
        final=Final.ALWAYS,
    ),
    Reason.CLUSTER_SCALING_UP: Remedy(
        "False",
        "The cluster is adding nodes; GPUs are reserved afterwards.",
        (
            "Wait for the new nodes.",
            "If none come, see the pods that the autoscaler is to make room for: kubectl get pods -n "
            "kai-scale-adjust",
        ),
    ),
    Reason.RESERVATION_IMAGE_UNKNOWN: Remedy(
        "False",
        "No image is set for reservation pods, and the binder cannot tell which it runs itself; the "
        "message says why. It looks again after a minute.",
        (
            "Set the binder's flag --resource-reservation-pod-image, or have the binder know its own pod: by "
            "POD_NAME and POD_NAMESPACE, with the right to get it, and with a container named binder.",
        ),
    ),
    Reason.RESERVATION_REJECTED: Remedy(
        "False",
        "The API server refused the reservation pod; the message has its words.",
        (
            "Have <reservation-namespace> let reservation pods in: see its ResourceQuotas, its Pod "
            "Security level and "
            "admission policies: kubectl describe namespace <reservation-namespace>",
            "If it names a field, the binder's flags --resource-reservation-… set it.",
        ),
    ),
    Reason.RESERVATION_FAILED: Remedy(
        "False",
        "The reservation pod ended or was removed, or what it reports is not one device.",
        (
            f"See how it ended: {_RESERVATION}; kubectl get events -n <reservation-namespace>",
            "If node <node> had no free GPU, something else uses its GPUs that the scheduler does "
            "not know of.",
            "If the agent reports no device, see that the NVIDIA driver and device plugin of node "
            "<node> work.",
        ),
    ),
    Reason.RESERVATION_TIMEOUT: Remedy(
        "False",
        "The reservation pod reported no GPU in time; the message has its phase and what holds it "
        "up. Or one that "
        "nobody needs any more, and that holds a GPU of the node, did not go in time.",
        (
            f"See what holds it up: {_RESERVATION}",
            "If its image cannot be pulled, name one that can: flag --resource-reservation-pod-image "
            "of the binder.",
            "If it is Pending, see that the kubelet and the device plugin of node <node> work: "
            "kubectl describe node <node>",
            "If it is only slow, give it more time: flag --resource-reservation-allocation-timeout.",
        ),
    ),
    Reason.RESERVATION_CONFLICT: Remedy(
        "False",
        "The group's GPU is reserved on another node, two groups have the same device, or the "
        "reservation pod has "
        "lost the group's label.",
        (
            "Have the scheduler decide again; a group belongs to one GPU of one node.",
            "If two groups have the same device, two binders may run, or the device plugin hands a "
            "GPU out twice.",
        ),
    ),
    Reason.COMPUTE_MODE_CONFLICT: Remedy(
        "False",
        "The group's GPU is reserved for another way of sharing its compute units; the message has both.",
        (
            "Have the scheduler choose another GPU: delete the request.",
            "Or end the pods that use the group, which explain lists under Shared GPUs: "
            "its reservation goes with the last of them, and the next is made for the mode that is "
            "asked for.",
        ),
    ),
    Reason.RESERVATION_LOST: Remedy(
        "False",
        "The group has lost its reservation pod while other pods use its GPU, or while this one was "
        "being bound.",
        (
            "Find out who deletes pods in <reservation-namespace>: they must be left alone.",
            "The binder ends pods whose GPU may be given to others; their owners make them anew.",
        ),
    ),
    Reason.CONFIG_MAP_CONFLICT: Remedy(
        "False",
        "A ConfigMap of this name is somebody else's, or is being deleted; the message says whose it is.",
        (
            "If nobody needs the ConfigMap that the message names, delete it: "
            "kubectl delete configmap NAME -n <namespace>",
            "Else give the pod another name of its own in the annotation runai/shared-gpu-configmap: "
            "make it anew.",
        ),
    ),
    Reason.MEMORY_UNKNOWN: Remedy(
        "False",
        "The node has no label nvidia.com/gpu.memory, and fallbackMemoryMiB is not set.",
        (
            "Have GPU feature discovery label node <node>, or do it by hand, in MiB: "
            "kubectl label node <node> nvidia.com/gpu.memory=MIB",
            "Or tell the binder what such a card has: BINDER_PLUGINS__GPUMEMORYLIMIT__ARGUMENTS="
            '\'{"fallbackMemoryMiB": "MIB"}\'',
            "Where KAI's operator runs the binder, by its Config: "
            "kubectl patch configs.kai.scheduler kai-config "
            '--type=merge -p \'{"spec":{"binder":{"plugins":{"hamicore":{"arguments":'
            '{"fallbackMemoryMiB":"MIB"}}}}}}\'',
        ),
    ),
    Reason.INVALID_NODE_MEMORY: Remedy(
        "False",
        "The node's label nvidia.com/gpu.memory is no whole number.",
        ("Correct it, in MiB: kubectl label node <node> --overwrite nvidia.com/gpu.memory=MIB",),
    ),
    Reason.INVALID_GPU_MEMORY: Remedy(
        "False",
        "The annotation gpu-memory is no whole number of MiB.",
        ('Correct it in what the pod is made from, e.g. gpu-memory: "4096", and make the pod anew.',),
        again=False,
        final=Final.ALWAYS,
    ),
    Reason.MEMORY_EXCEEDS_CARD: Remedy(
        "False",
        "The pod asks for more than the GPU has.",
        (
            "Ask for less in gpu-memory, or have the pod go to nodes with larger GPUs; make it anew.",
            "If the label nvidia.com/gpu.memory of node <node> is wrong, correct it.",
        ),
        final=Final.ALWAYS,
    ),
    Reason.MEMORY_EXCEEDS_GRANT: Remedy(
        "False",
        "The pod asks for more than the scheduler granted, e.g. since its annotation was changed afterwards.",
        (
            "Set gpu-memory of the pod back to what the message says was granted: "
            "kubectl annotate pod <pod> -n <namespace> --overwrite gpu-memory=MIB",
            f"If it needs more, make it anew: {_ANEW}.",
        ),
    ),
    Reason.MEMORY_TOO_SMALL: Remedy(
        "False",
        "The limit would be less than 1 MiB.",
        ("Ask for a larger share in gpu-fraction, and make the pod anew.",),
        again=False,
        final=Final.ALWAYS,
    ),
    Reason.LIMIT_NOT_DELIVERED: Remedy(
        "False",
        "A container that sees the GPU would not see the limit, or something in the pod gets round it.",
        (
            "Change in what the pod is made from what the message names (variables, envFrom, "
            "annotations), and make the pod anew.",
            "See that KAI's admission webhook runs: it has the container read the ConfigMap with the limit.",
        ),
        again=False,
        final=Final.AT_TIMES,
    ),
}
