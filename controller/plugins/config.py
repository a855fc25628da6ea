"""What a person sets for a plugin.

Read by ``settings`` and its sources, followed by the registry. A module of its own, so that `--help` needs
no plugin, and what they import.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FailurePolicy = Literal["Fail", "Ignore"]


class PluginConfig(BaseModel):
    """What a user sets for one plugin; None means the plugin's own default (B-48)."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    enabled: bool | None = None
    priority: int | None = None
    arguments: dict[str, str] | None = None
    failure_policy: FailurePolicy | None = Field(default=None, alias="failurePolicy")
