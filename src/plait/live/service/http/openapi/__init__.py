"""The description of the HTTP API at `/openapi.json`: routes, parameters, answers, errors and recorded examples.

Routes name their answer and body by `routes.answers`; `describe.description` adds what follows from a route's form
(errors, roles, summaries). `examples.json` is recorded from a service by `tests/unit/live/test_openapi.py`.
Start at `describe.description`.
"""
