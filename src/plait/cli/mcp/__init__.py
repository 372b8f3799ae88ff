"""Tools for coding agents over the Model Context Protocol, and the skill file for agents that work with plait.

Each tool calls the service through the public client, with the token of the user and therefore with the user's role.
Only this package imports the library of the protocol, which the extra `mcp` brings. Start reading at `server.py`.
"""
