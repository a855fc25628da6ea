"""What runs in reservation pods: the image that was set, or the one that the binder itself runs.

Asked by `ReservationPods` before it makes a pod, and run by the app as a service. The agent is a verb of this
project's command, so its image gets the argument; with any other image nothing is added (B-87). Our image by
another name does without: in reservation pods the command knows what it is for (``controller.__main__``).
Invariant: the binder's own pod is read only where it can be told which it is, and not again once that has
succeeded. What cannot be known leaves the image as it was set.

Secrets for pulling are not taken over: they are of the binder's namespace, and a pod that names any gets none
of those that its own service account has.
"""

from collections.abc import Mapping
from pathlib import Path

import anyio
from loguru import logger

from controller.kai.names import PODS
from controller.reservation.manifest import Agent, OwnPod, ReservationOptions
from controller.runtime import errors
from controller.runtime.client import Client, Object

CONTAINER = "binder"
"""Of the Deployments that KAI's operator and we write."""
ARGS = ("agent",)

_DEFAULT_REGISTRIES = ("docker.io/", "index.docker.io/")
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


class AgentImage:
    """Knows what reservation pods run, once it has looked."""

    def __init__(self, client: Client, options: ReservationOptions) -> None:
        self._client = client
        self._options = options
        self._known: Agent | None = None
        self._told = False
        self._lock = anyio.Lock()

    async def run(self) -> None:
        """Looks a moment after the start, so that a problem is told before a GPU is to be shared."""
        await anyio.sleep(_AFTER_S)
        try:
            await self.agent()
        except errors.ApiError as error:
            logger.bind(error=error.message).debug("The binder's own pod cannot be read yet")

    async def agent(self) -> Agent:
        """What a reservation pod is to run.

        Raises:
            errors.ApiError: The server was not there.
        """
        async with self._lock:
            if self._known is not None:
                return self._known
            options = self._options
            own = await self._own_image()
            if options.image_is_set:
                is_ours = own is not None and is_same_name(own, options.image)
                self._known = Agent(options.image, ARGS if is_ours else ())
            elif own is not None:
                self._known = Agent(own, ARGS)
                logger.bind(image=own).info("Reservation pods run the binder's own image")
            return self._known or Agent(options.image)

    async def _own_image(self) -> str | None:
        """The image of the binder's container, as its pod names it; None if that cannot be known."""
        own = self._options.own_pod
        if own is None:
            return None
        try:
            pod = await self._client.get(PODS, own.name, own.namespace)
        except errors.StatusError as error:
            if error.transient:
                raise
            self._tell(f"the binder's own pod {own.namespace}/{own.name} cannot be read: {error.message}")
            return None
        image = image_of(pod)
        if image is None:
            names = ", ".join(container["name"] for container in pod["spec"]["containers"])
            self._tell(f"none of the containers of pod {own.namespace}/{own.name} is {CONTAINER}: {names}")
        return image

    def _tell(self, problem: str) -> None:
        if self._told:
            return
        self._told = True
        if self._options.image_is_set:
            logger.bind(problem=problem).debug("The binder's own image is not known")
        else:
            text = f"{problem}; set POD_NAME and POD_NAMESPACE, or --resource-reservation-pod-image"
            logger.bind(problem=text).error("GPUs cannot be shared")


def image_of(pod: Object) -> str | None:
    """The image of the binder in its pod: of the container of that name, else of the only one."""
    containers = pod["spec"]["containers"]
    named = [container for container in containers if container["name"] == CONTAINER]
    found = named or (containers if len(containers) == 1 else [])
    return str(found[0]["image"]) if found else None
