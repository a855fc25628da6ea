"""How properties are tried: the same examples in each run, so that a test that fails once fails always."""

from hypothesis import HealthCheck, settings

examples = settings(
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
