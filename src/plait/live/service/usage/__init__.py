"""What jobs use over time, kept by the service beside its event log: decisions never read it.

Every few seconds `recorder` takes what agents have said last into bounded series (`series`), and writes them to the
home folder (`files`), so that a service that starts again continues them. Start at `recorder.UsageRecorder`.
"""
