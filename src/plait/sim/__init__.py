"""The simulator: a backend whose events come from physics instead of a cluster."""
