"""Who gets which aggregators of which switch: managers of switch memory, pure functions of a frozen state.

Start at `manager.Manager`, the interface of all; `catalog.make_manager` has them by name: equal parts (SwitchML),
shared (ATP, A2TP), shared with priorities (ESA), and regions for deadlines (INAlloc). `records` has what they take and
give. Packets are in `plait.network.protocol`; what a grant means there is `protocol.options.set_region`.
"""
