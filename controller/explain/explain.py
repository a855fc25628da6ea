"""`kai-binder explain`: why a pod is not bound, and what to do."""

import json
from datetime import UTC, datetime

from controller.explain.answer import VERSION, Answer, Verdict, as_json
from controller.explain.findings import gather
from controller.explain.judge import judged
from controller.explain.options import Options
from controller.explain.reads import connected
from controller.explain.target import Target, find
from controller.explain.terminal import Terminal
from controller.explain.text import show
from controller.explain.verbs import CannotTellError
from controller.kai.names import is_object_name


async def run(options: Options, terminal: Terminal) -> int:
    """Explains; 0 if the pod is bound, 1 if it is not.

    Raises:
        CannotTellError: There is nothing of that name, or it may not be read.
        CredentialsError: There is no way to the API server.
        errors.ApiError: It does not answer.
    """
    target = Target.parse(options.target, options.namespace)
    async with connected(options.kubeconfig, options.context, deadline_s=options.timeout_s) as (reads, own):
        namespace = target.namespace or own
        if not is_object_name(namespace):
            raise CannotTellError(f"{namespace!r} is no name of a namespace")
        found = await find(reads, target, namespace)
        findings = await gather(reads, found, options)
        answer = judged(findings, reads.missing, options, datetime.now(UTC))
    if options.output == "json":
        terminal.raw(as_text(answer))
    else:
        show(answer, terminal, datetime.now(UTC))
    return 0 if answer.verdict is Verdict.BOUND else 1


def as_text(answer: Answer) -> str:
    """The answer as JSON, in ASCII: nothing in it can be taken for an order by a terminal."""
    body = as_json(answer)
    whole = {"kind": "Explanation", "version": VERSION, **(body if isinstance(body, dict) else {})}
    return json.dumps(whole, indent=2, ensure_ascii=True)
