"""The words of a status that machines read: phases, condition types, reasons."""

from enum import StrEnum


class Phase(StrEnum):
    """status.phase; the scheduler reads it. Empty on a new request."""

    NEW = ""
    PENDING = "Pending"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """The conditions that do not belong to a plugin."""

    GPU_RESERVED = "GPUReserved"
    BOUND = "Bound"


LIMIT_CONDITION = "GPUMemoryLimit"
"""The condition of the plugin that limits memory, which others read: metrics and `kai-binder gpus`."""


class Reason(StrEnum):
    """Why a condition is as it is: one word for machines; the message says the rest."""

    RECONCILED = "Reconciled"
    NOT_APPLICABLE = "NotApplicable"
    ALREADY_BOUND = "AlreadyBound"
    WAITING = "Waiting"
    BLOCKED = "Blocked"
    DEPENDENCY_NOT_MET = "DependencyNotMet"

    INVALID_REQUEST = "InvalidRequest"
    POD_NOT_FOUND = "PodNotFound"
    POD_REPLACED = "PodReplaced"
    POD_TERMINATING = "PodTerminating"
    POD_FINISHED = "PodFinished"
    POD_GATED = "PodGated"
    ANNOTATIONS_TOO_LONG = "AnnotationsTooLong"
    ALREADY_BOUND_ELSEWHERE = "AlreadyBoundElsewhere"
    NODE_GONE = "NodeGone"
    REQUEST_DELETED = "RequestDeleted"
    REQUEST_CHANGED = "RequestChanged"
    INVALID_GPU_GROUP = "InvalidGPUGroup"
    INVALID_GPU_CONFIG = "InvalidGPUConfig"
    INVALID_PORTION = "InvalidPortion"
    INVALID_GPU_MEMORY = "InvalidGPUMemory"
    INVALID_NODE_MEMORY = "InvalidNodeMemory"
    MEMORY_UNKNOWN = "MemoryUnknown"
    MEMORY_EXCEEDS_CARD = "MemoryExceedsCard"
    MEMORY_EXCEEDS_GRANT = "MemoryExceedsGrant"
    MEMORY_TOO_SMALL = "MemoryTooSmall"
    LIMIT_NOT_DELIVERED = "LimitNotDelivered"
    CONFIG_MAP_CONFLICT = "ConfigMapConflict"
    CLUSTER_SCALING_UP = "ClusterScalingUp"
    RESERVATION_IMAGE_UNKNOWN = "ReservationImageUnknown"
    RESERVATION_REJECTED = "ReservationRejected"
    RESERVATION_TIMEOUT = "ReservationTimeout"
    RESERVATION_FAILED = "ReservationFailed"
    RESERVATION_CONFLICT = "ReservationConflict"
    COMPUTE_MODE_CONFLICT = "ComputeModeConflict"
    RESERVATION_LOST = "ReservationLost"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    CLAIM_UNBOUND = "ClaimUnbound"
    CLAIM_REPLACED = "ClaimReplaced"
    VOLUME_UNREACHABLE = "VolumeUnreachable"
    VOLUME_NOT_FOUND = "VolumeNotFound"
    VOLUME_TAKEN = "VolumeTaken"
    NO_FITTING_VOLUME = "NoFittingVolume"
    PROVISIONING_REFUSED = "ProvisioningRefused"
    CLAIM_NOT_OWNED = "ClaimNotOwned"
    CLAIM_TERMINATING = "ClaimTerminating"
    CLAIM_UNALLOCATED = "ClaimUnallocated"
    CLAIM_FULL = "ClaimFull"
    ALLOCATION_CONFLICT = "AllocationConflict"
    DEVICE_NOT_READY = "DeviceNotReady"
    BIND_TIMEOUT = "BindTimeout"
    UNSUPPORTED = "Unsupported"
    FORBIDDEN = "Forbidden"
    CONFLICT = "Conflict"
    REJECTED = "Rejected"
    SERVER_ERROR = "ServerError"
    INTERNAL_ERROR = "InternalError"
