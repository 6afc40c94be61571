"""Two workers share two cores, so each computes with one thread; property tests do not race the clock."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
