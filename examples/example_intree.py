"""Registers two impls of an op in a separate registry; calls the op, switches, falls back, and explains the choice.

Run it from anywhere: python examples/example_intree.py
"""

import sys

import torch

from opmux.core import BackendImplKind, OpImpl, OpManager, OpRegistry, log, with_preference


def rmsnorm(input, weight, eps=1e-5, **kwargs):
    """Your chip's implementation, here in PyTorch. `**kwargs` accepts the op's other arguments, and ignores them."""
    rsigma = torch.rsqrt(input.square().mean(-1, keepdim=True) + eps)
    return input * rsigma * weight, rsigma


def rmsnorm_plain(input, weight, eps=1e-5, **kwargs):
    out = torch.nn.functional.rms_norm(input, input.shape[-1:], weight, eps)
    return out, torch.rsqrt(input.square().mean(-1, keepdim=True) + eps)


def rmsnorm_turbo(input, weight, eps=1e-5, **kwargs):
    raise RuntimeError("the turbo unit is switched off")


def step(title):
    print(f"\n--- {title}")


sys.stdout.reconfigure(line_buffering=True)  # keeps output and log lines in order, in a pipe too
log.show("INFO")

registry = OpRegistry()
registry.register_many(
    [
        OpImpl(
            op_name="rmsnorm_fwd",
            impl_id="vendor.mybackend",
            kind=BackendImplKind.VENDOR,
            vendor="mybackend",
            fn=rmsnorm,
            priority=200,
        ),
        OpImpl("rmsnorm_fwd", "reference.torch", BackendImplKind.REFERENCE, fn=rmsnorm_plain),
    ]
)
manager = OpManager(registry)
x, weight = torch.randn(4, 64), torch.ones(64)

step("call")
out, rsigma = manager.call("rmsnorm_fwd", x, weight)
print(f"out {tuple(out.shape)}, rsigma {tuple(rsigma.shape)}, from {manager.get_selected_impl_id('rmsnorm_fwd')}")

step("another policy, for a block")
with with_preference("reference"):
    again, _ = manager.call("rmsnorm_fwd", x, weight)
    print(f"from {manager.get_selected_impl_id('rmsnorm_fwd')}, largest difference {(out - again).abs().max():.0e}")

step("an implementation that fails is replaced by the next one, and the failure is paid for once")
turbo = OpImpl(
    "rmsnorm_fwd", "vendor.mybackend.turbo", BackendImplKind.VENDOR, "mybackend", rmsnorm_turbo, priority=300
)
registry.register_impl(turbo)
manager.call("rmsnorm_fwd", x, weight)
manager.call("rmsnorm_fwd", x, weight)

step("why this one?")
print(manager.explain("rmsnorm_fwd", x, weight))
