"""The agent of a node: runs the processes of jobs by the service's assignments. Standard library only.

Start at `agent.Agent.run`.
"""
