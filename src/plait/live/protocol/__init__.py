"""Data that crosses processes: messages of agents, requests of users, job files, and their validation.

Start at `wire`, the messages between agent and service.
"""
