"""Acme's operators for opmux. opmux imports this module on first use and calls `register` once."""

import torch

from opmux.core import BackendImplKind, OpImpl

from . import activation, norm

OPMUX_API = 1  # the version of the plugin interface; opmux refuses another version, and says why

HALF_AND_SINGLE = frozenset({torch.float16, torch.bfloat16, torch.float32})


def register(registry):
    registry.register_many(
        [
            vendor("rmsnorm_fwd", norm.rmsnorm_fwd),
            vendor("rms_norm", norm.rms_norm),
            vendor("silu_mul", activation.silu_mul, supported_dtypes=HALF_AND_SINGLE, when=activation.whole_vectors),
        ]
    )


def vendor(op_name, fn, **conditions):
    return OpImpl(
        op_name=op_name,
        impl_id="vendor.acme",
        kind=BackendImplKind.VENDOR,
        vendor="acme",
        fn=fn,
        priority=200,
        **conditions,
    )
