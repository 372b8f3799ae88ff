"""Requests of users and operators: new jobs, changes of jobs, policies, projects, nodes taken out and back.

Each request is checked and recorded; start at `operations`, for new jobs at `admission`, for what becomes of jobs
(cancel, requeue, update) at `changes`.
"""
