"""The types that everything else is made of: resources, jobs, clusters, plans, and the interface of a policy.

Start at `policy.Policy`.
"""
