"""The demo itself: it plays the scheduler and the people who make pods, and shows what comes of it.

Called by ``command``. Invariant: it succeeds only if each case has ended as ``cases`` says, each limit has
reached its pod, and the webhook has refused what it should.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from containers import Containers
from controlplane import ControlPlane, ControlPlaneError

from demonstration.cases import (
    CLAIM,
    CONTRADICTION,
    CONTRADICTORY,
    EACH_KIND,
    NO_SHARING,
    REFUSED,
    ROOT,
    Case,
    has_ended,
    samples,
)
from demonstration.programs import PREFIX, Programs, annotations_of
from demonstration.showing import failure_of, heading, say, section_of

CLAIMS_VERSION = "resource.k8s.io/v1"
COMMAND = ".venv/bin/kai-binder"
"""Of the environment that hack/demo runs in, as from the root of this checkout."""
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
END_TIMEOUT_S = 60.0
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
NOT_MADE = "Error from server"
REQUESTS = "/apis/scheduling.run.ai/v1alpha2/bindrequests"
SHOWN = "half-a"
"""The pod whose way is shown."""


class DemoError(Exception):
    """Something did not end as the table of cases says."""


class Play:
    """The demo on a control plane that runs.

    Args:
        programs: Binder and webhook.
        containers: The agents of the reservation pods.
        verbose: Whether to show everything.
    """

    def __init__(self, programs: Programs, containers: Containers, *, verbose: bool) -> None:
        self._programs = programs
        self._plane: ControlPlane = programs.plane
        self._containers = containers
        self._verbose = verbose

    def run(self) -> None:
        """Plays all.

        Raises:
            DemoError: Something did not end as it should.
            ControlPlaneError: Something did not even start; the text says why.
        """
        say("Applying config/overlays/with-memory-limit, but for its Deployments: no kubelet runs pods here.")
        self._programs.install()
        settings = " ".join(f"{name}={value}" for name, value in self._programs.setting.items())
        say("Starting binder and webhook as their ServiceAccounts, both with that overlay's one setting,")
        say(f"{settings} ...")
        try:
            with self._programs.running():
                self._each_kind()
                self._way_of_a_share()
                self._refusal()
            say_contradiction()
            with self._programs.running(NO_SHARING):
                self._contradiction()
        except (DemoError, ControlPlaneError) as error:
            raise DemoError(f"{error}\n\n{self.logs()}") from error

    def logs(self) -> str:
        """The last lines of all logs."""
        found = []
        logs = {"binder": self._programs.binder_log, "webhook": self._programs.webhook_log}
        for name, path in {**logs, "agents": self._containers.log}.items():
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            found.append("\n".join((f"The last lines of the log of the {name}:", *lines[-20:])))
        return "\n\n".join(found)

    def _each_kind(self) -> None:
        heading("A request of each kind")
        claims = CLAIMS_VERSION in self._plane.kubectl("api-versions").split()
        cases = [case for case in EACH_KIND if claims or case.name != CLAIM]
        if not claims:
            say(f"This server has no {CLAIMS_VERSION}: config/samples/{CLAIM}.yaml is left out.")
        say("$ kubectl apply -k config/samples  # pods as people write them, requests as by the scheduler")
        self._apply(*samples(claims=claims))
        say(f"All {len(cases)} requests have ended after {self._wait(cases):.1f} s.")
        self._show("get", "bindrequests")
        self._check(cases)
        self._show_all(cases)

    def _way_of_a_share(self) -> None:
        heading("A share, from the pod to its limit")
        say(f'Pod {SHOWN} only says gpu-fraction: "0.5". The webhook has added where its container looks:')
        self._show("set", "env", f"pod/{SHOWN}", "--list")
        say("The agent has named the GPU; the binder has passed that on, and worked out the limit:")
        name = f"{annotations_of(self._plane, SHOWN)[PREFIX]}-0"
        say(f"$ kubectl get configmap {name} -o yaml  # its data")
        say(section_of(self._plane.kubectl("get", "configmap", name, "-o", "yaml"), "data"))

    def _refusal(self) -> None:
        heading("A pod that can never be bound")
        path = str(REFUSED.relative_to(ROOT))
        say(f"$ kubectl apply -f {path}")
        said = self._kubectl("apply", "-f", str(REFUSED)).strip()
        say(said)
        if "denied the request: metadata.annotations[gpu-fraction]" not in said:
            raise DemoError(f"the webhook has not refused {path}")

    def _contradiction(self) -> None:
        path = str(CONTRADICTION.relative_to(ROOT))
        say(f"$ kubectl apply -f {path}")
        said = self._apply("-f", str(CONTRADICTION))
        warnings = [line for line in said.splitlines() if line.startswith("Warning: ")]
        say("\n".join(warnings))
        self._wait(CONTRADICTORY)
        name = CONTRADICTORY[0].name
        say(f"$ kubectl describe bindrequest {name}  # the step that failed")
        say(failure_of(self._plane.kubectl("describe", "bindrequest", name)))
        self._check(CONTRADICTORY)
        if not warnings:
            raise DemoError("the webhook has not warned that the binder runs other plugins")
        self._show_all(CONTRADICTORY)

    def _show_all(self, cases: Sequence[Case]) -> None:
        """What is only shown when asked for: all of it."""
        if not self._verbose:
            return
        say()
        self._show("get", "pods", "-o", "wide")
        self._show("get", "pods", "--namespace=kai-resource-reservation", "-o", "yaml")
        for case in cases:
            heading(f"{case.name}: {case.shows}")
            self._show("describe", "bindrequest", case.name)
            if case.limit:
                self._show("get", "pod", case.name, "-o", "yaml")
                prefix = annotations_of(self._plane, case.name)[PREFIX]
                self._show("get", "configmap", f"{prefix}-0", f"{prefix}-0-evar", "-o", "yaml")
        say(f"\n{self.logs()}")

    def _apply(self, *arguments: str) -> str:
        """Applies samples; what kubectl says, warnings included.

        Raises:
            DemoError: Something was not accepted.
        """
        said = self._kubectl("apply", *arguments)
        if self._verbose:
            say(said.rstrip())
        if NOT_MADE in said or "error:" in said:
            raise DemoError(f"kubectl apply: {said}")
        return said

    def _wait(self, cases: Sequence[Case]) -> float:
        """Waits until every request has ended; returns the seconds that it took.

        Raises:
            DemoError: It takes too long.
        """
        started = time.monotonic()
        open_ = [case.name for case in cases]
        while open_:
            requests = self._requests()
            open_ = [name for name in open_ if not has_ended(requests.get(name, {}))]
            if time.monotonic() - started > END_TIMEOUT_S:
                raise DemoError(f"after {END_TIMEOUT_S:.0f} s these have not ended: {', '.join(open_)}")
            time.sleep(0.1)
        return time.monotonic() - started

    def _check(self, cases: Sequence[Case]) -> None:
        """Compares the endings with the table.

        Raises:
            DemoError: One is another than expected.
        """
        requests = self._requests()
        wrong = []
        for case in cases:
            status = requests[case.name]["status"]
            phase, reason = status["phase"], status.get("reason", "")
            if phase != case.phase or not reason.startswith(case.reason):
                wrong.append(f"{case.name} is {phase} ({reason}), not {case.phase} ({case.reason}…)")
            elif case.limit and (found := self._limit_of(case.name)) != case.limit:
                wrong.append(f"{case.name} has the limit {found}, not {case.limit}")
        if wrong:
            raise DemoError("; ".join(wrong))

    def _limit_of(self, pod: str) -> str | None:
        prefix = annotations_of(self._plane, pod)[PREFIX]
        data: Mapping[str, str] = self._plane.request("GET", f"{CONFIG_MAPS}/{prefix}-0").get("data") or {}
        return data.get(LIMIT)

    def _requests(self) -> dict[str, Any]:
        """All BindRequests by name."""
        return {item["metadata"]["name"]: item for item in self._plane.request("GET", REQUESTS)["items"]}

    def _kubectl(self, *arguments: str) -> str:
        """What kubectl says, complaints included, with paths as from the root of this checkout."""
        return self._plane.kubectl(*arguments, check=False).replace(f"{ROOT}/", "")

    def _show(self, *command: str) -> None:
        """Prints a kubectl command and its output."""
        say(f"$ kubectl {' '.join(command)}\n{self._plane.kubectl(*command).rstrip()}")


def say_contradiction() -> None:
    """Announces the second part, which starts everything anew."""
    (setting,) = (f"{name}={value}" for name, value in NO_SHARING.items())
    heading(f"The limit without gpusharing: the binder anew, with {setting}")


def hints(programs: Programs, containers: Containers) -> Sequence[tuple[str, str]]:
    """What to try while all runs, each with its meaning."""
    mended = '{"spec":{"selectedNode":"gpu-node-1"}}'
    contradiction = CONTRADICTION.relative_to(ROOT)
    return (
        ("kubectl get br", "br is short for bindrequests"),
        (f"{COMMAND} explain unknown-node", "why a pod is not bound, and what to do"),
        (f"{COMMAND} gpus", "who is on which GPU"),
        (f"kubectl set env pod/{SHOWN} --list --resolve", "what its container will see"),
        ("kubectl get pods -n kai-resource-reservation -o yaml", "who holds the GPUs"),
        (f"kubectl annotate --overwrite pod {SHOWN} gpu-fraction=0.9", "refused: the scheduler went by it"),
        (f"kubectl patch br unknown-node --type=merge -p '{mended}'", "mends a request: it binds at once"),
        (f"kubectl delete --force -f {contradiction}", "and then, now that gpusharing is on:"),
        (f"kubectl apply -f {contradiction}", "binds, with 3072 MiB"),
        ("kubectl get events", "what was told of pods and requests"),
        (f"curl {programs.metrics_url}", "the binder's metrics"),
        (f"curl {programs.health_url}", "its health"),
        (f"tail -f {programs.binder_log} {programs.webhook_log} {containers.log}", "the logs"),
    )
