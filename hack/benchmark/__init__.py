"""Measures the binder on a real local control plane: throughput, latency, API requests, CPU, memory."""
