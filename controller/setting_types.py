"""The types of settings: what a value must be, and how that is said to the person who typed another.

Used by ``settings`` only. Pure; a check raises ValueError with the end of a sentence that begins with the
setting and the value.
"""

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WrapValidator

from controller.sources import parse_json_object

if TYPE_CHECKING:
    from controller.runtime.endpoints import Address

PLACEHOLDER_IMAGE = "registry/local/kai-scheduler/resource-reservation"
"""What the Go binder has as default: no image of this name can be pulled."""

NODE_POOL_LABEL = "kai.scheduler/node-pool"
"""KAI's default."""

LogLevel = Literal["trace", "debug", "info", "warning", "error"]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUANTITY = re.compile(r"\+?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE])?")
_PART = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
_IMAGE = re.compile(
    r"((\[[0-9A-Fa-f:]+\]|[A-Za-z0-9][A-Za-z0-9.-]*)(:\d+)?/)?"  # registry
    rf"{_PART}(/{_PART})*(:\w[\w.-]{{0,127}})?(@[a-z0-9]+:[0-9a-f]{{32,}})?"
)


def _only(allowed: str) -> WrapValidator:
    """Replaces pydantic's own complaints about a value by one sentence that says what is allowed."""

    def check(value: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"must be {allowed}") from None

    return WrapValidator(check)


def _check_resources(value: dict[str, Any] | None) -> dict[str, Any] | None:
    wrong = []
    for kind in ("requests", "limits"):
        amounts = (value or {}).get(kind)
        if amounts is not None and not isinstance(amounts, dict):
            wrong.append(f"{kind} must be a JSON object")
            continue
        for name, amount in (amounts or {}).items():
            if isinstance(amount, bool) or not _QUANTITY.fullmatch(str(amount)):
                wrong.append(
                    f'{kind}.{name} is {json.dumps(amount)}, but must be a quantity such as "100m" or "64Mi"'
                )
    if wrong:
        raise ValueError("; ".join(wrong))
    return value


def _check_feature_gates(value: str) -> str:
    if any(
        not re.fullmatch(r"\w+=(?i:true|false)", gate.strip()) for gate in value.split(",") if gate.strip()
    ):
        raise ValueError("must be a list such as Name=true,Other=false")
    return value


def _check_zap_level(value: str) -> str:
    if value.lower() not in ("", "debug", "info", "error", "panic") and not re.fullmatch(r"\d+", value):
        raise ValueError(
            "must be debug, info, error, panic or a whole number (1 = debug, 2 and more = trace)"
        )
    return value.lower()


def parse_address(text: str) -> "Address | None":
    """Reads where to listen, as `Address.parse` does; imports it late, since --help needs no web server."""
    from controller.runtime.endpoints import Address

    return Address.parse(text)


def image_problem(image: str) -> str | None:
    """Why no pod can run this image; None if one can, as far as its name tells."""
    if image == PLACEHOLDER_IMAGE:
        return f"{image!r} is a placeholder"
    if not _IMAGE.fullmatch(image):
        return f"{image!r} is no name of an image, such as registry.example.com/team/agent:v1"
    return None


def _check_address(value: str) -> str:
    parse_address(value)
    return value


def _check_serving_address(value: str) -> str:
    if parse_address(value) is None:
        raise ValueError("must be an address such as :9443, 127.0.0.1:9443 or [::1]:9443")
    return value


def _check_rate(value: float) -> float:
    if value <= 0 and value != -1:
        raise ValueError
    return value


Switch = Annotated[bool, _only("true or false")]
Count = Annotated[int, Field(ge=1), _only("a whole number, 1 or more")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), _only("a number of seconds above 0")]
Rate = Annotated[
    float,
    Field(allow_inf_nan=False),
    AfterValidator(_check_rate),
    _only("a number above 0, or -1 for no limit"),
]
Namespace = Annotated[
    str,
    Field(pattern=f"^{_LABEL}$", max_length=63),
    _only("a namespace: at most 63 of a-z, 0-9 and '-', a letter or digit first and last"),
]
OwnNamespace = Annotated[
    str,
    Field(pattern=f"^({_LABEL})?$", max_length=63),
    _only("empty or a namespace: at most 63 of a-z, 0-9 and '-', a letter or digit first and last"),
]
Name = Annotated[
    str,
    Field(pattern=rf"^{_LABEL}(\.{_LABEL})*$", max_length=253),
    _only("a Kubernetes name: a-z, 0-9, '-' and '.', a letter or digit first and last"),
]
MaybeName = Annotated[
    str,
    Field(pattern=rf"^({_LABEL}(\.{_LABEL})*)?$", max_length=253),
    _only("empty or a Kubernetes name: a-z, 0-9, '-' and '.', a letter or digit first and last"),
]
LabelValue = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=63),
    _only("a label value: at most 63 letters, digits, '-', '_' and '.', a letter or digit first and last"),
]
MaybeLabelValue = Annotated[
    str,
    Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63),
    _only(
        "empty or a label value: at most 63 letters, digits, '-', '_' and '.', "
        "a letter or digit first and last"
    ),
]
MaybeLabelKey = Annotated[
    str,
    Field(
        pattern=rf"^(({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?)?$",
        max_length=317,
    ),
    _only("empty or the name of a label such as kai.scheduler/node-pool"),
]
ServingAddress = Annotated[str, BeforeValidator(_check_serving_address)]
MaybeURL = Annotated[
    str,
    Field(pattern=r"^(https?://[^\s/?#]+[^\s?#]*)?$"),
    _only("empty or a URL such as http://binder.kai-scheduler.svc:8080/metrics"),
]
FilePath = Annotated[str, Field(pattern=r"^/.*[^/]$"), _only("the whole path of a file, from / on")]
MaybeUser = Annotated[
    str,
    Field(pattern=r"^\S*$"),
    _only("empty or a user name such as system:serviceaccount:kai-scheduler:binder, without spaces"),
]
BindAddress = Annotated[str, BeforeValidator(_check_address)]
JSONObject = Annotated[dict[str, Any] | None, BeforeValidator(parse_json_object)]
Resources = Annotated[JSONObject, AfterValidator(_check_resources)]
FeatureGates = Annotated[str, BeforeValidator(_check_feature_gates)]
Image = Annotated[str, Field(pattern=r"^\S+$"), _only("an image, without spaces")]
ZapEncoder = Annotated[Literal["", "json", "console"], _only("json or console")]
ZapLevel = Annotated[str, BeforeValidator(_check_zap_level)]
ZapStacktraceLevel = Annotated[Literal["", "info", "error", "panic"], _only("info, error or panic")]
ZapTimeEncoding = Annotated[
    Literal["", "epoch", "millis", "nano", "iso8601", "rfc3339", "rfc3339nano"],
    _only("epoch, millis, nano, iso8601, rfc3339 or rfc3339nano"),
]
Level = Annotated[LogLevel, _only(f"one of {', '.join(get_args(LogLevel))}")]
LogFormat = Annotated[Literal["text", "json"], _only("text or json")]
