"""The binder itself: from a BindRequest to a bound pod and a status that says so."""
