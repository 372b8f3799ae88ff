"""The live scheduler: messages and times in, log entries and assignments out.

The protocol of steps: functions here are generators. They take the `Context`, an input and the time, change nothing,
and yield *steps*. A step is an entry for the log (an event of the controller, or one of `records.notes`) or one of
`records.observations`, which only memory keeps. The `ledger` applies each step to the state before it requests the next
one, so code after a `yield` sees the state with that step. The ledger then commits.

Start reading at `engine`, which defines the order of work. Nothing here has a socket, thread, clock, file or logger:
the caller of an engine passes in the store, the fences and a timer, and logs the `problems` in `engine.counts`.

The path of an agent's report:

    engine.observe        one report; `batch` puts the reports of many agents into one commit
    ingest.report         the node: it joins, comes back, gives notice
    ingest.processes      each process: it starts, runs, ends; its measurements go to `profiles`, `adaptive` and
                          `stop_costs`
    ledger.take           every step of these: `fold.apply` and `memory.remember` apply it to the state
    engine.step           the consequences of all reports of the batch:
      watch, decide       silent nodes; new jobs for the controller; whether the policy decides
      reconcile           attempts begin, get stop requests, and end
    ledger.commit         log, rows and snapshot in one transaction; then older attempts are fenced
    assignments           the processes that each agent should run
"""
