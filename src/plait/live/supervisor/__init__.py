"""Supervision of services and agents of a home: started, found again, restarted when they die, stopped in order.

The command line and Kubernetes manifests only call it. Start at `keeper.keep`.
"""
