"""The coordinator of a node, which decides for jobs that share its GPUs: reports in, directives out.

`reports` reads what processes say in their pages, `orders` writes what they are to do.

Start at `coordinator.Coordinator.run_once`.
"""
