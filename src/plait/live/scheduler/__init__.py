"""The live scheduler: messages and times in, log entries and assignments out.

Functions here take the `Context` and change the state in one way: `Context.record` applies an entry (an event of the
controller, or one of `records.notes`) at once, so that the rest of the function sees it, and keeps it for the next
commit. Facts that no log has, because agents report them again, are fields of `NodeRecord`, `Rank` and `JobRecord`.

Start reading at `engine`, which defines the order of work. Nothing here has a socket, thread, clock, file or logger:
the caller of an engine passes in the store, the fences and a timer, and logs the `problems` in `engine.counts`.

The path of an agent's report:

    engine.observe          one report; `batch` puts the reports of many agents into one commit
    report.take_report      the node joins, comes back, gives notice; each process starts, runs, ends
    measured                profiles, estimates and costs of stops that the processes reported
    engine.step             the consequences of all reports of the batch:
      report.watch, decide  silent nodes; new jobs for the controller; whether the policy decides
      reconcile             attempts begin, get stop requests, and end
    engine, at the end      log, rows and snapshot in one transaction; then older attempts are fenced
    assignments             the processes that each agent should run
"""
