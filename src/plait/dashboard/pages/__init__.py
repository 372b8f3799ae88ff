"""One module a page: its requests to the API, and the values of its template. Start at `overview`."""
