"""Networks as fluid: the rate of every job at once, without packets; links are shared max-min fairly.

Start at `jobs.rates`, which takes placed jobs and a graph; `memory.aggregated_rates` is the same where switches add up
gradients, and `max_min.max_min` the solver of both. `memory.steady_rates` mixes exchanges of all kinds (`exchanges`),
and `iterations.iterations` has the times of jobs that compute and exchange in turn.
"""
