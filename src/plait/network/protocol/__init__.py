"""The protocol of in-network aggregation: what switches, parameter servers and workers do with one packet.

Pure functions on arrays, compiled: the same ones for a simulator and for a software switch. SwitchML, ATP and A2TP are
after their released code; ESA and INAlloc, of which there is no public code, after published descriptions. What every
other choice rests on is said where it is made.

    packets, values = header.make_packets(8, elements=62)
    workers = worker.make_workers(1, window=64)
    options.set_up(workers, 0, options.preset("atp", window=64), job=0, rank=0, n_workers=2)
    options.set_region(workers, 0, 0, 1000, epoch=0)
    worker.worker_start(workers, 0, 0, 500, 0, now)
    while worker.worker_send(workers, 0, packets, 0, now):      # fill in values[0], then
        actions = switch.switch_step(table, packets, values, 0, spare, now)

`header` has the packets, `addressing` the index of an aggregator, `options` all options with their defaults,
`fixed_point` and `priority` what workers put into packets. Start reading at `switch.switch_step`, then
`server.server_step` and `worker.worker_receive`.
"""
