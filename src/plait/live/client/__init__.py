"""How programs talk to the scheduler service: one method a question, over HTTP, with time-outs, repeats and TLS.

Start at `client.Client`.
"""
