"""Huawei's Ascend NPUs."""

from __future__ import annotations

from opmux.backends import Target, VendorInfoBase
from opmux.backends.chips import by_name

# The unified buffer of a vector core: triton-ascend's programming guide (A2, A3), Ascend C's GetUBSizeInBytes (950).
# Each AI core has two vector cores; a 910B has at least 20 AI cores, a die of a 910C has 24. There are no warps.
_A2 = Target(cores=40, shared_memory=192 << 10)

vendor_info = VendorInfoBase(
    vendor_name="ascend",
    device_name="npu",
    device_query_cmd="npu-smi info",
    dispatch_key="PrivateUse1",
    torch_package="torch_npu",
    driver_files=("/dev/davinci_manager",),
    triton_extra_name="cann",
    fp64_enabled=False,
    targets={
        "": _A2,
        "ascend910b": _A2,
        "ascend910c": Target(cores=48, shared_memory=192 << 10),
        "ascend950": Target(shared_memory=248 << 10),
    },
    verified={"ascend": "nothing was run on this hardware; ops/ runs in the interpreter"},
)


def arch_of(index: int) -> str | None:
    """The arch from the chip's name: "Ascend910B3", "Ascend910_9382" (a die of a 910C), "Ascend950PR_957c"."""
    names = {
        "Ascend910B": "ascend910b",
        "Ascend910_93": "ascend910c",
        "Ascend950": "ascend950",
        "Ascend910_95": "ascend950",
    }
    return by_name("npu", index, names)
