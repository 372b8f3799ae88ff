"""Changes of the tables since the first version, applied when a store is opened."""
