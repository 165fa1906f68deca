"""NCCL's library against the CUDA half of LibTorch: nothing that it needs is missing there.

usage: nccl.py LIBMEGAHOST_NCCL
"""

import ctypes
import pathlib
import sys

import torch

ctypes.CDLL(pathlib.Path(torch.__file__).with_name("lib") / "libtorch_cuda.so", ctypes.RTLD_GLOBAL)  # as our program does
lib = ctypes.CDLL(sys.argv[1])  # every symbol at once, or an error that names the first which is missing
assert hasattr(lib, "megahost_make_nccl")
print("opened next to LibTorch", torch.__version__)
