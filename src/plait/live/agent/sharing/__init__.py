"""The coordinator of a node, which decides for jobs that share its GPUs: reports in, directives out.

`reports` reads the processes' pages, `orders` writes their directives.

Start at `coordinator.Coordinator.run_once`.
"""
