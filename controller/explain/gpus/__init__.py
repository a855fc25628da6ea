"""`kai-binder gpus`: who is on which GPU. Read (`reading.py`), understood (`picture.py`), drawn (`bars.py`)."""
