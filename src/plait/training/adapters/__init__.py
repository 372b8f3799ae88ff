"""plait in trainers of other libraries: a callback each, or a helper. Each file imports its library."""
