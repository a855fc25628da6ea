"""Reservation of whole GPUs that are to be shared, one pod for each."""
