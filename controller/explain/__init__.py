"""Tells people what the cluster knows: why a pod is not bound, who is on which GPU. It writes nothing."""
