"""What is decided between the reads and writes of an attempt. All pure.

The reconciler and the assignment ask, and so does the model of attempts (tests/unit/model), which goes
through all that can happen between two of these decisions. Invariant: nothing is read or remembered here.
"""

from controller.kai.outcome import Failed, Ready, failed_by
from controller.kai.pods import full_name, judge_pod
from controller.kai.reasons import Reason
from controller.kai.request import BindRequest, is_over
from controller.runtime import errors
from controller.runtime.client import Object


def why_obsolete(item: Object, held: Object | None) -> Failed | None:
    """Why a request that is worked on is not to be bound any more, if it is not.

    Args:
        item: The request as it was when the work began.
        held: The request of its name as the cache has it now, or None if there is none.
    """
    metadata, name = item["metadata"], full_name(item)
    if held is None or held["metadata"]["uid"] != metadata["uid"]:
        return Failed(Reason.REQUEST_DELETED, f"request {name} was deleted", retry=False)
    if is_over(held):
        return Failed(Reason.REQUEST_DELETED, f"request {name} is over", retry=False)
    if held["metadata"].get("generation") != metadata.get("generation"):
        return Failed(Reason.REQUEST_CHANGED, f"request {name} was changed while it was worked on")
    return None


def must_be_confirmed(request: BindRequest, verdict: Ready | Failed | None) -> bool:
    """Whether what is said of a pod as the cache shows it needs a live look before it is acted upon.

    Args:
        request: The request.
        verdict: That of `judge_pod`.
    """
    # Without an owner the pod may be an earlier one of that name, whose end the cache has not seen.
    unsure = isinstance(verdict, Ready) and request.owner_uid is None
    return isinstance(verdict, Failed) or unsure


def leaves_it_open(error: errors.ApiError) -> bool:
    """Whether, after a Binding was answered so, only the pod itself says whether it is on its node."""
    return error.unclear or isinstance(error, (errors.ConflictError, errors.NotFoundError))


def judged_after(
    error: errors.ApiError, request: BindRequest, pod: Object | None, uid: str
) -> Ready | Failed | None:
    """What became of a Binding that was answered with an error.

    Args:
        error: One that leaves it open.
        request: The request.
        pod: The pod, read since; None if there is none.
        uid: Of the pod that was to be bound.

    Returns:
        None if nothing did: pod and request wait as before, and the error is to be raised.
    """
    if pod is None:
        return Failed(Reason.POD_NOT_FOUND, f"pod {request.full_pod_name} is gone", retry=False)
    verdict = judge_pod(request, pod, uid)
    if verdict is None and not error.transient:
        return failed_by(error)
    return verdict
