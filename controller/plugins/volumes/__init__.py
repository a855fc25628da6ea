"""The plugin volumebinding: persistent volumes."""
