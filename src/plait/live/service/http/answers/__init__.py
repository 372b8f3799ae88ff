"""Answers of the HTTP API, one model an answer: the description of the API is made of these.

Answers are plain values that handlers send without a detour through models (`plait.live.service.http.api.Json`), so a
test calls every route of a service and checks each answer against the schema made here. Start reading at `jobs.JobRow`.
"""
