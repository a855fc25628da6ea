"""Shares of GPUs that a component on the node enforces: what it has to know, as annotations of the pod.

Opt-in, for clusters with that component (KAI v0.18's mode NvFractions, N-51…N-55); there it takes the place
of gpusharing. It writes nothing by itself: the annotations travel with the Binding.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from controller.kai.fractions import (
    COMPUTE_PORTION,
    DEVICES,
    MEMORY_LIMIT,
    MEMORY_REQUEST,
    key,
    portion_limit,
    portion_limit_key,
    said,
)
from controller.kai.memory import card_of, portion_mib
from controller.kai.pods import full_name
from controller.kai.quantity import mebibytes, quantity
from controller.kai.reasons import Reason
from controller.kai.sharing import container_of, shown
from controller.plugins.annotations import device_names, memory_request, refusal_of_name
from controller.plugins.arguments import GoBool
from controller.plugins.base import BindContext, Failed, Outcome, Plugin, Prepared, Ready
from controller.runtime.client import Client, Object

_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,64})?|\.[0-9]{1,64}")


class Arguments(BaseModel):
    """Arguments of nvfractions.

    Attributes:
        cdi_enabled: Whether devices are named as the Container Device Interface does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cdi_enabled: GoBool = Field(alias="cdiEnabled")


class NvFractions(Plugin):
    """Tells the node which devices a container shares, and how much of them it may use."""

    name = "nvfractions"
    condition_type = "NvFractions"
    priority = 90
    enabled = False
    default_arguments: ClassVar = {"cdiEnabled": "false"}
    arguments_model = Arguments

    def __init__(self, client: Client, arguments: BaseModel) -> None:
        super().__init__(client, arguments)
        assert isinstance(arguments, Arguments)  # noqa: S101 -- the registry's promise
        self._cdi = arguments.cdi_enabled

    def concerns(self, context: BindContext) -> bool:
        """Only fractions are shares."""
        return context.request.is_fraction

    async def prepare(self, context: BindContext) -> Prepared | Failed:
        """Works out the memory that the container is granted and may use at most."""
        found = container_of(context.pod, strict=True)
        if isinstance(found, Failed):
            return found
        container = str(found[1]["name"])
        request = memory_request(context, container)
        if isinstance(request, Failed):
            return request
        limit = _memory_limit(context, container)
        if isinstance(limit, Failed):
            return limit
        compute = _compute_portion(context, container)
        if isinstance(compute, Failed):
            return compute
        memory = {**request, **limit}
        problem = _problem(context.pod, container, memory)
        if problem is not None:
            return Failed(Reason.INVALID_GPU_CONFIG, problem, retry=False)
        return Prepared(annotations={**memory, **compute}, found=container)

    async def pre_bind(self, context: BindContext) -> Outcome:
        """Names the devices, which are known only now."""
        container, devices = str(context.found), device_names(context.gpu_ids, cdi=self._cdi)
        text = f"container {container} gets {context.request.gpu_portion} of {devices}, by annotations"
        return Ready(text, {key(container, DEVICES): devices})


def _memory_limit(context: BindContext, container: str) -> dict[str, str] | Failed:
    """The memory that a container may use at most, where its pod says so as a portion of a card (N-53)."""
    source, name = portion_limit_key(container), key(container, MEMORY_LIMIT)
    text = portion_limit(context.pod, container)
    if text is None or said(context.pod, container, MEMORY_LIMIT) is not None:
        return {}
    portion = Decimal(text) if _DECIMAL.fullmatch(text) else Decimal(0)
    if not 0 < portion <= 1:
        wrong = f"annotation {source} of pod {full_name(context.pod)} is {shown(text)}"
        wrong = f"{wrong}; it must be a decimal number above 0 and at most 1, such as 0.75"
        return Failed(Reason.INVALID_GPU_CONFIG, wrong, retry=False)
    card = card_of(context.node)
    if isinstance(card, Failed):
        return card
    mib = portion_mib(portion, card)
    if mib < 1:
        wrong = f"annotation {source} of pod {full_name(context.pod)} allows less than 1 MiB: {text}"
        return Failed(Reason.MEMORY_TOO_SMALL, f"{wrong} of the card; {card.source}", retry=False)
    return {name: mebibytes(mib)}


def _problem(pod: Object, container: str, ours: Mapping[str, str]) -> str | None:
    """What is wrong with the memory that annotations speak of, the pod's own and those to be written."""
    texts, amounts = [], []
    for ending in (MEMORY_REQUEST, MEMORY_LIMIT):
        name = key(container, ending)
        text = ours.get(name) or said(pod, container, ending)
        if text is None:
            return None  # there is no limit
        try:
            amount = quantity(text)
        except ValueError:
            amount = Fraction(0)
        if amount <= 0:
            where = f"annotation {name} of pod {full_name(pod)} is {shown(text)}"
            return f"{where}; it must be an amount of memory such as 4Gi"
        texts.append(text)
        amounts.append(amount)
    if amounts[1] >= amounts[0]:
        return None
    where = f"container {container} of pod {full_name(pod)} may use at most {texts[1]} of GPU memory"
    return f"{where}, less than the {texts[0]} that it was granted"


def _compute_portion(context: BindContext, container: str) -> dict[str, str] | Failed:
    """The share of compute power, at most the whole; what is no number means nothing (N-9, N-55)."""
    text = context.request.compute_portion
    if text is None or not _DECIMAL.fullmatch(text) or Decimal(text) <= 0:
        return {}
    name = key(container, COMPUTE_PORTION)
    impossible = refusal_of_name(context, container, name)
    return impossible or {name: "1" if Decimal(text) > 1 else text}
