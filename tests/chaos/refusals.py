"""What an admin may have in a cluster that makes the API server refuse a binder's writes. Pure.

Each is a choice of objects, by the path of their kind, that exist for as long as the refusal lasts.
"""

from collections.abc import Mapping

from tests.chaos.history import Object
from tests.chaos.rules.words import RESERVATIONS
from tests.chaos.world import TEAM
from tests.cluster import POLICIES, POLICY_BINDINGS

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
NAME = "chaos"
"""Of all these objects."""
NAMESPACE = "kubernetes.io/metadata.name"


def quotas() -> list[Mapping[str, Object]]:
    """No ConfigMap more in the team's namespace; or no reservation pod."""
    return [
        {f"/api/v1/namespaces/{namespace}/resourcequotas": {"spec": {"hard": {what: "0"}}}}
        for namespace, what in ((TEAM, "count/configmaps"), (RESERVATIONS, "pods"))
    ]


def policies() -> list[Mapping[str, Object]]:
    """An admission policy that denies each binding in the team's namespace (403)."""
    rule = _rule("CREATE", "", "pods/binding")
    matched = {"resourceRules": [rule], "namespaceSelector": {"matchLabels": {NAMESPACE: TEAM}}}
    verdict = {"expression": "false", "message": "no bindings for now", "reason": "Forbidden"}
    return [
        {
            POLICIES: {"spec": {"matchConstraints": matched, "validations": [verdict]}},
            POLICY_BINDINGS: {"spec": {"policyName": NAME, "validationActions": ["Deny"]}},
        }
    ]


def webhooks() -> list[Mapping[str, Object]]:
    """A webhook that must be asked, and is not there (500): about one kind of write each."""
    choices = [
        (TEAM, _rule("CREATE", "", "pods/binding")),
        (TEAM, _rule("CREATE", "", "configmaps")),
        (TEAM, _rule("UPDATE", "scheduling.run.ai", "bindrequests/status")),
        (TEAM, _rule("UPDATE", "resource.k8s.io", "resourceclaims/status")),
        (TEAM, _rule("UPDATE", "", "pods/status")),
        (RESERVATIONS, _rule("CREATE", "", "pods")),
    ]
    return [{WEBHOOKS: {"webhooks": [_webhook(namespace, rule)]}} for namespace, rule in choices]


def _rule(operation: str, group: str, resource: str) -> Object:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": [operation],
        "resources": [resource],
    }


def _webhook(namespace: str, rule: Object) -> Object:
    return {
        "name": "down.chaos.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {NAMESPACE: namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
