"""What keeps services and agents of a home alive: started, found again, restarted when they die, stopped in order.

The command line and Kubernetes manifests only call it. Start at `keeper.keep`.
"""
