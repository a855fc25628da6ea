"""The arguments of the verbs that tell: `explain` and `gpus`.

Called by `command.py`. Invariant: nothing heavy is imported, so that `--help` costs next to nothing.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

RESERVATION_NAMESPACE = "kai-resource-reservation"
BINDER_NAMESPACE = "kai-scheduler"
SCHEDULER_NAME = "kai-scheduler"
MEMORY_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"
"""As `kai.names` has it, whose imports cost more than a help text may."""

_EXPLAIN = """\
Tells why a pod is not bound: what the scheduler decided, how far the binder came, what holds it up, and what
to do about it. It reads with your own rights and changes nothing; what you may not read it names.

  kai-binder explain team/train            the request of this name, or those of the pod of this name
  kai-binder explain train                 the same in the namespace of the kubeconfig's context
  kai-binder explain pod/train -n team     the pod, where both have the name and are not of each other
  kai-binder explain br/train-x -n team    the BindRequest"""

_EXPLAIN_CODES = """\
exit codes: 0 bound, 1 not (yet) bound, 2 cannot tell (not found, no rights, no server, bad arguments)"""

_GPUS = """\
Shows who is on which GPU: nodes, their GPUs, the pods on each with portion, memory and limit. It reads with
your own rights and changes nothing; what you may not read it names.

  kai-binder gpus                      all nodes with GPUs
  kai-binder gpus gpu-node-1           one node
  kai-binder gpus --namespace team     the nodes that the pods of a namespace are on
  kai-binder gpus --watch              again, whenever something has changed"""

_GPUS_CODES = """\
exit codes: 0 nothing is wrong so far as can be seen, 1 something is wrong on a GPU (the output says what),
2 cannot tell (no such node, no rights, no server, bad arguments)"""


class Options(NamedTuple):
    """What was asked for.

    Attributes:
        verb: `explain` or `gpus`.
        target: Of `explain`, what to explain; of `gpus`, a node or empty for all.
        output: `text` or `json`.
        namespace: Where to look; empty: as the target or the kubeconfig says, of `gpus` everywhere.
        kubeconfig: Path; empty means the usual order.
        context: Of the kubeconfig; empty means its current one.
        reservation_namespace: Where the reservation pods are.
        binder_namespace: Where the binder runs and has its lease.
        scheduler_name: Of KAI's scheduler, as pods name it.
        timeout_s: Seconds that each request may take.
        watch: Of `gpus`: whether to go on showing.
        ascii: Of `gpus`: whether to draw with ASCII only.
        limit_variable: Of `gpus`: that limiters read.
    """

    verb: str
    target: str = ""
    output: str = "text"
    namespace: str = ""
    kubeconfig: str = ""
    context: str = ""
    reservation_namespace: str = RESERVATION_NAMESPACE
    binder_namespace: str = BINDER_NAMESPACE
    scheduler_name: str = SCHEDULER_NAME
    timeout_s: float = 10.0
    watch: bool = False
    ascii: bool = False
    limit_variable: str = MEMORY_LIMIT


class ArgumentsError(Exception):
    """Arguments that make no sense; the message says which, and what is allowed."""


class HelpRequested(Exception):  # noqa: N818 -- it is no error
    """Somebody asked for help; the message is the text."""


class _Parser(argparse.ArgumentParser):
    """Leaves writing and ending to the command."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentsError(f"{message}; see {self.prog} --help")

    def print_help(self, file: object = None) -> NoReturn:
        raise HelpRequested(self.format_help())


def parse(argv: Sequence[str], program: str = "kai-binder") -> Options:
    """Reads the arguments.

    Args:
        argv: Verb and arguments.
        program: As the user has called it, for the help.

    Raises:
        ArgumentsError: They make no sense.
        HelpRequested: Help was asked for, or there is no verb.
    """
    parser = _Parser(prog=program, description="Tells what the cluster knows of binds and GPUs.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    _add_explain(verbs, program)
    _add_gpus(verbs, program)
    found = parser.parse_args(argv)
    if found.verb is None:
        parser.print_help()
    options = Options(**{name: value for name, value in vars(found).items() if value is not None})
    if not 0 < options.timeout_s <= 3600:  # which nan is not, either
        raise ArgumentsError(f"--timeout is {options.timeout_s:g}; it must be more than 0 and at most 3600")
    return options


def _add_explain(verbs: "argparse._SubParsersAction[_Parser]", program: str) -> None:
    parser = verbs.add_parser(
        "explain",
        help="why a pod is not bound, and what to do",
        description=_EXPLAIN.replace("kai-binder", program),
        epilog=_EXPLAIN_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "target",
        metavar="[NAMESPACE/]NAME",
        help="a BindRequest or a pod; also pod/NAME, bindrequest/NAME, br/NAME",
    )
    parser.add_argument("-n", "--namespace", help="namespace, where the name does not say it")
    _add_common(parser)


def _add_gpus(verbs: "argparse._SubParsersAction[_Parser]", program: str) -> None:
    parser = verbs.add_parser(
        "gpus",
        help="who is on which GPU",
        description=_GPUS.replace("kai-binder", program),
        epilog=_GPUS_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", metavar="NODE", nargs="?", help="only this node")
    parser.add_argument("-n", "--namespace", help="only pods of this namespace; others are shown as one sum")
    parser.add_argument("-w", "--watch", action="store_true", help="go on showing, until Ctrl-C")
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII only")
    parser.add_argument(
        "--limit-variable",
        metavar="NAME",
        help=f"as gpumemorylimit's argument `variable` (default {MEMORY_LIMIT})",
    )
    _add_common(parser)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=("text", "json"), help="text (default) or json")
    parser.add_argument(
        "--kubeconfig", metavar="FILE", help="as of kubectl: else $KUBECONFIG, ~/.kube/config"
    )
    parser.add_argument("--context", help="of the kubeconfig; its current one if not given")
    parser.add_argument(
        "--reservation-namespace",
        metavar="NAMESPACE",
        help=f"where the reservation pods are (default {RESERVATION_NAMESPACE})",
    )
    parser.add_argument(
        "--binder-namespace",
        metavar="NAMESPACE",
        help=f"where the binder runs (default {BINDER_NAMESPACE})",
    )
    parser.add_argument(
        "--scheduler-name", metavar="NAME", help=f"as pods name KAI's scheduler (default {SCHEDULER_NAME})"
    )
    parser.add_argument(
        "--timeout",
        dest="timeout_s",
        metavar="SECONDS",
        type=float,
        help="for each request to the API server (default 10)",
    )
