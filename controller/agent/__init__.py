"""The program in a reservation pod: it says which GPU the pod was given, and holds it."""
