"""The agent of a node: keeps the processes of jobs as the service wants them. Standard library only."""
