"""VENDOR_TITLE's chips."""

from opmux.backends import Target, VendorInfoBase

# The folder of an arch, by its name or the start of that: {"VENDOR_NAME200": "big"}. It may hold the same files as this
# one, and they come first. `def arch_of(index: int) -> str | None` says which arch a device is; without it, none.
ARCH_MAP: dict[str, str] = {}

vendor_info = VendorInfoBase(
    vendor_name="VENDOR_NAME",
    device_name="DEVICE_NAME",
    device_query_cmd="VENDOR_NAME-smi",  # TODO: a command that succeeds only where the chip is
    torch_package="TORCH_PACKAGE",  # what brings torch.DEVICE_NAME, where that is not torch itself
    # TODO: the chip in figures, by arch; "" is any. What is left out is asked of the device, or not known.
    targets={"": Target(cores=None, shared_memory=None, warp_size=None)},
    verified="nothing was run on this hardware",
)
