"""Use of resources by jobs over time, kept by the service next to its event log: decisions never read it.

Every few seconds `recorder` takes the last reports of agents into bounded series (`series`), and writes them to the
home folder (`files`), so that a service that starts again continues them. Start at `recorder.UsageRecorder`.
"""
