"""How agents get onto nodes."""
