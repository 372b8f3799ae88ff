"""Dataclasses as JSON: what is written and read (`values`), and its JSON Schema (`schema`). Start at `values.Codec`."""
