"""Agents on the nodes of a Ray cluster: one executor a node hosts the agent and nothing else.

Only `bridge` imports ray. Start at `backend.RayBackend`.
"""
