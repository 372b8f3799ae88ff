"""What the service remembers: the log of events and decisions, and views of it."""
