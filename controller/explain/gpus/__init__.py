"""`kai-binder gpus`: who is on which GPU. `reading.py` reads, `picture.py` understands, `bars.py` draws."""

from controller.explain.gpus.command import run

__all__ = ["run"]
