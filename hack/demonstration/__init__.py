"""What `hack/demo` shows, and how it checks that it is so."""
