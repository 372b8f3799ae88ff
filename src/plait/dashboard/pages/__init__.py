"""One module a page: what it asks the API, and what its template shows. Start at `overview`."""
