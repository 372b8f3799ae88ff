"""The live scheduler without sockets, threads or clocks: messages and times in, log entries and assignments out.

Start at `engine.Engine`. `ingest` takes in what agents report, `decide` asks the policy, `reconcile` begins and ends
attempts, `assignments` derives what each agent is told, and `state` is the fold over the log.
"""
