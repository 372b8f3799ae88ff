"""What users and operators ask for: new jobs, cancelling, policies, projects, nodes taken out and back.

Each request is checked and becomes steps; start at `operations`, for new jobs at `admission`.
"""
