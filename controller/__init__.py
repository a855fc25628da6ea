"""kai-binder: binds pods to the nodes and GPUs that KAI Scheduler chose for them."""
