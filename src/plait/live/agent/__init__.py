"""The agent of a node: runs the processes of jobs as the service asks. Standard library only.

Start at `agent.Agent.run`.
"""
