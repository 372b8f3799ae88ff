"""The live cluster: a service that decides, a store that remembers, an agent on each node that runs processes."""
