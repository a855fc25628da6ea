"""Prometheus' own engine over metrics that are given: rules and queries at any time, without waiting.

Used by the tests of the alerts and of the dashboard, and by ``hack/dashboard``::

    from promql import Scrape, evaluate

    scrapes = [Scrape(at_s=0, text=metrics), Scrape(at_s=30, text=metrics)]
    print(evaluate(scrapes, queries=[Query("up", at_s=30)]).answers)
"""

from promql.engine import Alert, Answer, Query, Result, Rules, Scrape, Series, ensure_engine, evaluate

__all__ = [
    "Alert",
    "Answer",
    "Query",
    "Result",
    "Rules",
    "Scrape",
    "Series",
    "ensure_engine",
    "evaluate",
]
