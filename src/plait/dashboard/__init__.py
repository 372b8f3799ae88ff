"""Pages for people in a browser: rendered by the service, from the answers of its own HTTP API.

`app.make` makes the application that the service mounts under `/web/`. It imports neither engine nor store: every page
requests the API, in the same process, with the viewer's token, so the API's roles apply. Start at `app`.
"""
