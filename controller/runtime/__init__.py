"""A small controller runtime: what controller-runtime is to Go.

It knows Kubernetes objects as plain dictionaries and nothing of what is reconciled with it.
"""
