"""Parts from which queue policies are composed: orders, urgency, Gittins indices, regrouping.

Start at `compose.Composed`.
"""
