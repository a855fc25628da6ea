"""The admission webhook: prepares pods that ask for a share of a GPU, and refuses what could not be bound."""
