"""kai-binder: binds pods to the nodes and GPUs that KAI Scheduler chose for them."""

KAI_VERSIONS = ("v0.17", "v0.18")
"""The versions of KAI Scheduler whose contract this binder fulfils."""
