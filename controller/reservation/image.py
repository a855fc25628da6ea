"""What runs in reservation pods: the image that was set, or the one that the binder itself runs.

Asked by `ReservationPods` before it makes a pod, and run by the app as a service. The agent is a verb of this
project's command, so its image gets the argument; with any other image nothing is added (B-87). Our image by
another name does without: in reservation pods the command knows what it is for (``controller.__main__``).
Invariants: the binder's own pod is read only where it can be told which it is, not again once that has
succeeded, and at most once a minute where it has not; and a pod whose image nobody knows is not made, as it
would hold a GPU that its agent never names. Outside of pods, and where it is set, the image is as it was set.

Secrets for pulling are not taken over: they are of the binder's namespace, and a pod that names any gets none
of those that its own service account has.
"""

from collections.abc import Mapping
from pathlib import Path

import anyio
from loguru import logger

from controller.kai.names import PODS
from controller.kai.outcome import Failed
from controller.kai.reasons import Reason
from controller.reservation.manifest import Agent, OwnPod, ReservationOptions
from controller.runtime import errors
from controller.runtime.client import Client, Object

CONTAINER = "binder"
"""Of the Deployments that KAI's operator and we write."""
ARGS = ("agent",)

_DEFAULT_REGISTRIES = ("docker.io/", "index.docker.io/")
_ASK_AGAIN_AFTER_S = 60.0
_AFTER_S = 5.0
"""Where little CPU is allowed the first binds go before it."""


def own_pod(environ: Mapping[str, str], hostname: str, namespace_file: Path) -> OwnPod | None:
    """Which pod this process runs in, as far as a process can tell.

    Args:
        environ: The environment; the downward API gives POD_NAME and POD_NAMESPACE.
        hostname: The host's name, which is that of a pod without a hostname of its own.
        namespace_file: Where the kubelet writes the namespace.

    Returns:
        The pod, or None outside of pods.
    """
    namespace = environ.get("POD_NAMESPACE", "")
    if not namespace and namespace_file.is_file():
        namespace = namespace_file.read_text().strip()
    name = environ.get("POD_NAME") or hostname
    return OwnPod(namespace, name) if namespace and name else None


def repository(image: str) -> str:
    """An image's name without tag and digest."""
    named, _, _ = image.partition("@")
    path, slash, last = named.rpartition("/")
    return f"{path}{slash}{last.partition(':')[0]}"  # a colon before the last slash is that of a port


def is_same_name(one: str, other: str) -> bool:
    """Whether two images differ in tag and digest at most; without a registry a name is one of Docker Hub."""
    return _short(one) == _short(other)


def _short(image: str) -> str:
    path = repository(image)
    for registry in _DEFAULT_REGISTRIES:
        path = path.removeprefix(registry)
    namespace, _, name = path.partition("/")
    return name if namespace == "library" and "/" not in name else path


def outlook_of(image_is_set: bool, own: OwnPod | None) -> str:
    """What reservation pods will run, as far as that is known without the server (`AgentImage.agent`)."""
    if own is None:
        return f"the {'image that is set' if image_is_set else 'placeholder'}, without an argument"
    pod, argument = f"pod {own.namespace}/{own.name}", f"with the argument {' '.join(ARGS)}"
    if image_is_set:
        return f"the image that is set, {argument} if {pod} runs one of that name"
    return f"the image of the binder's own {pod}, {argument}"


class AgentImage:
    """Knows what reservation pods run, once it has looked."""

    def __init__(self, client: Client, options: ReservationOptions) -> None:
        self._client = client
        self._options = options
        self._known: Agent | None = None
        self._unknown: Failed | None = None
        self._asked_at_s = 0.0
        self._lock = anyio.Lock()

    async def run(self) -> None:
        """Looks a moment after the start, so that a problem is told before a GPU is to be shared."""
        await anyio.sleep(_AFTER_S)
        try:
            await self.agent()
        except errors.ApiError as error:
            logger.bind(error=error.message).debug("The binder's own pod cannot be read yet")

    async def agent(self) -> Agent | Failed:
        """What a reservation pod is to run, or why that cannot be known for now.

        Raises:
            errors.ApiError: The server was not there.
        """
        async with self._lock:
            if self._known is not None:
                return self._known
            if self._unknown is not None and anyio.current_time() < self._asked_at_s + _ASK_AGAIN_AFTER_S:
                return self._unknown
            found = await self._look()
            if isinstance(found, Agent):
                self._known = found
                return found
            if self._unknown is None:
                logger.bind(problem=found.message).error("GPUs cannot be shared")
            self._unknown, self._asked_at_s = found, anyio.current_time()
            return found

    async def _look(self) -> Agent | Failed:
        options = self._options
        own = await self._own_image()
        if options.image_is_set:
            if isinstance(own, Failed):
                logger.bind(problem=own.message).debug("The binder's own image is not known")
            is_ours = isinstance(own, str) and is_same_name(own, options.image)
            return Agent(options.image, ARGS if is_ours else ())
        if own is None:  # outside of pods, where a placeholder was told of at the start
            return Agent(options.image)
        if isinstance(own, Failed):
            return own
        logger.bind(image=own).info("Reservation pods run the binder's own image")
        return Agent(own, ARGS)

    async def _own_image(self) -> str | Failed | None:
        """The image of the binder's container, as its pod names it, or why that is unknown; None outside."""
        own = self._options.own_pod
        if own is None:
            return None
        try:
            pod = await self._client.get(PODS, own.name, own.namespace)
        except errors.StatusError as error:
            if error.transient:
                raise
            return _unknown(
                f"the binder's own pod {own.namespace}/{own.name} cannot be read: {error.message}; "
                "set POD_NAME and POD_NAMESPACE to those of a pod that the binder may get"
            )
        names = ", ".join(container["name"] for container in pod["spec"]["containers"])
        return image_of(pod) or _unknown(
            f"none of the containers of pod {own.namespace}/{own.name} is {CONTAINER}: {names}; "
            f"call the binder's {CONTAINER}"
        )


def _unknown(problem: str) -> Failed:
    text = f"{problem}, or set --resource-reservation-pod-image"
    return Failed(Reason.RESERVATION_IMAGE_UNKNOWN, text)


def image_of(pod: Object) -> str | None:
    """The image of the binder in its pod: of the container of that name, else of the only one."""
    containers = pod["spec"]["containers"]
    named = [container for container in containers if container["name"] == CONTAINER]
    found = named or (containers if len(containers) == 1 else [])
    return str(found[0]["image"]) if found else None
