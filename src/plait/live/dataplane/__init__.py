"""The running network: a software switch and an aggregation server, each a process that moves UDP datagrams.

Both call the functions of `plait.network.protocol` on all datagrams of one receive; a control socket registers jobs,
gives out memory and injects faults. Start at `switch_plane.SwitchPlane.take`; `control.SwitchControl` is the client of
the control socket.
"""
