"""The vocabulary: what KAI, its requests, pods and nodes say, for all that bind, prepare or explain."""
