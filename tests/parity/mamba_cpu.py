"""Plain PyTorch stands in for the packages that megatron-core's Mamba layers import: einops, mamba_ssm, triton."""

import importlib.machinery
import math
import re
import sys
import types

import torch


def rearrange(tensor, pattern, **sizes):
    """The patterns of Mamba's mixer: dimensions in another order, joined, parted, or of size 1."""
    left, right = ([group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", side)] for side in pattern.split("->"))
    found = {}
    for group, size in zip(left, tensor.shape, strict=True):
        known = math.prod(sizes.get(name, 1) for name in group)
        found |= {name: sizes.get(name, size // known) for name in group if name != "1"}
    order = [list(found).index(name) for group in right for name in group if name != "1"]
    return tensor.reshape(list(found.values())).permute(order).reshape([math.prod(found.get(name, 1) for name in group) for group in right])


def chunk_scan(x, dt, A, B, C, chunk_size, D, dt_bias, **_):
    """Mamba-2's recurrence, token after token: x [batch, seq, heads, dim], dt [batch, seq, heads], B and C [batch, seq, groups, state]."""
    dt = torch.nn.functional.softplus(dt + dt_bias)
    B, C = (one.repeat_interleave(x.size(2) // one.size(2), dim=2) for one in (B, C))
    state, rows = 0, []
    for t in range(x.size(1)):
        written = (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        state = state * torch.exp(dt[:, t] * A)[..., None, None] + written
        rows.append((state * C[:, t, :, None]).sum(-1))
    return torch.stack(rows, 1) + D[:, None] * x


class GatedNorm(torch.nn.Module):
    """RMSNorm of groups behind the gate."""

    def __init__(self, width, eps, group_size, **_):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.eps, self.group_size = eps, group_size

    def forward(self, x, z):
        y = (x * torch.nn.functional.silu(z)).unflatten(-1, (-1, self.group_size))
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)).flatten(-2) * self.weight


def stand_in(name, **members):
    module = sys.modules[name] = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(members)


def install():
    """Before megatron-core's Mamba is imported."""
    if "mamba_ssm" in sys.modules:
        return
    stand_in("einops", rearrange=rearrange, repeat=None)
    for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
        stand_in(name)
    stand_in("mamba_ssm.ops.triton.layernorm_gated", RMSNorm=GatedNorm)
    stand_in("mamba_ssm.ops.triton.ssd_combined", mamba_chunk_scan_combined=chunk_scan, mamba_split_conv1d_scan_combined=None)
    names = ("tensor_get_slice_after", "tensor_masked_update", "tensor_merge")  # of inference alone
    stand_in("megatron.core.inference.contexts.attention_context.triton.tensor_ops", **dict.fromkeys(names))
