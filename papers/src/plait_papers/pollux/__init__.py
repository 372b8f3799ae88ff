"""Pollux's published simulation as a world of its own, with the published numbers next to ours (Qiao et al., OSDI'21).

Like Muri's (see `plait_papers.muri`), it is a closed set of interdependent rules: a clock of 60 s steps, jobs
that choose their batch after every segment of a step, whole seconds, a restart whose delay is set and not added, and
fair shares that are all on one node. So it is a small loop here, written for one purpose: the published digits.

    tables     the six models; measured step times and gradient noise, interpolated
    workload   the jobs of a file
    jobs       one job: its progress, its batch; one that measures itself and chooses its batch
    clock      `run`, where to start: step after step; who may share a node
    baselines, pollux
               the policies, each a `Rule`
    settings   policies and options as text
    world      the world for `plait simulate`
"""
