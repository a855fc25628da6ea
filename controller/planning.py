"""From the settings to the plugins that run: one way, for the binder and for its webhook.

Called by both composition roots, and so they cannot read the same setting in two ways.
"""

from controller.plugins import registry
from controller.plugins.registry import PlannedPlugin
from controller.setting_base import CommonSettings
from controller.settings import SettingsError


def plan(settings: CommonSettings, ignored: list[str] | None = None) -> tuple[PlannedPlugin, ...]:
    """The plugins that the settings enable, in their order.

    Args:
        settings: The settings.
        ignored: What of the plugins setting was left out is added here, in words.

    Raises:
        SettingsError: The plugins setting cannot be followed.
    """
    try:
        return registry.resolve(
            registry.installed(), settings.plugins, lenient=settings.lenient_plugins, ignored=ignored
        )
    except registry.PluginConfigError as error:
        raise SettingsError(error.problems) from error
