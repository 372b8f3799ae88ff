"""Muri's released simulator as a world of its own, and the published numbers beside ours (muri.md, parts B to E)."""
