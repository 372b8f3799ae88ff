"""In-network aggregation: who serves which switch, what jobs have of it, what ranks and switches get to know.

Start at `switches.follow`, which finds who serves a switch and which are lost, and `tell.tell`, which finds what ranks
are to know. The state has a `NetworkBook` (in `records`), which `scheduler.leases` keeps in step with the grants of the
controller. `orders` has what agents are to do, `shown` what people see.
"""
