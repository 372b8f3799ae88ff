"""Pages for people in a browser: rendered by the service, from the answers of its own HTTP API.

`app.make` makes the application that the service mounts under `/web/`. It knows nothing of engine and store: every
page asks the API, in the same process, with the token of whoever looks, so roles are those of the API. Start at `app`.
"""
