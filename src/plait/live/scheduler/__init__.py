"""The live scheduler: messages and times in, log entries and assignments out; no socket, thread, clock or file.

Functions take the `Context` (the state and what goes with it), an input and the time, and give out steps: entries for
the log (events of the controller, and `notes`) and `observations`, which only memory keeps. They change nothing. The
`ledger` takes each step into the state before the next one is asked for, and commits; the `engine`, where to start
reading, says which function runs when. Whoever makes an engine passes in the store, the fences and a timer.

An agent's report walks down once:

    engine.observe        one report, one time; `batch` puts the reports of many agents into one commit
    ingest.report         the node: it joins, comes back, gives notice
    ingest.processes      each process: it starts, goes on, ends; what it measured goes to `profiles`, `adaptive` and
                          `stop_costs`
    ledger.take           every step of these: `fold.apply` and `memory.remember` take it into the state
    engine.step           what follows from all reports of the batch:
      watch, decide       silent nodes; new jobs for the controller; whether the policy is asked
      reconcile           attempts begin, are told to stop, and end
    ledger.commit         log, rows and snapshot in one transaction; then older attempts are fenced
    assignments           what each agent is told
"""
