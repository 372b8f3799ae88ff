"""All ranks of a training that nothing happens to, with its libraries loaded once: alone.py RANKS SCRIPT WORD ..."""

import os
import runpy
import sys

import light_torch  # noqa: F401  before torch
import torch.distributed
import torch.utils.data  # noqa: F401

import plait.training  # noqa: F401  like those of torch: loaded here for all ranks

world, words = int(sys.argv[1]), sys.argv[2:]
children = []
for rank in range(world):
    child = os.fork()
    if not child:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
        sys.exit(0)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
