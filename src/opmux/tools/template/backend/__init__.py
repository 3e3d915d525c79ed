"""VENDOR_TITLE's chips."""

from opmux.backends import Target, VendorInfoBase

# The name of an arch, or its start -> the folder of the arch: {"VENDOR_NAME200": "big"}. It may hold the same files as
# this folder, and they take precedence. `def arch_of(index: int) -> str | None` returns the arch of a device.
ARCH_MAP: dict[str, str] = {}

vendor_info = VendorInfoBase(
    vendor_name="VENDOR_NAME",
    device_name="DEVICE_NAME",
    device_query_cmd="VENDOR_NAME-smi",  # TODO: a command that succeeds only where the chip is
    torch_package="TORCH_PACKAGE",  # the package that adds torch.DEVICE_NAME; "" if torch itself has it
    # TODO: the chip's properties by arch; "" means any arch. None is queried from the device, which may not know it.
    targets={"": Target(cores=None, shared_memory=None, warp_size=None)},
    verified="nothing was run on this hardware",
)
