"""What prepares a bind: the plugin interface, its registry, and the built-in plugins."""
