"""Acme's chips."""

from opmux.backends import VendorInfoBase

vendor_info = VendorInfoBase(
    vendor_name="acme",
    device_name="acm",
    device_query_cmd="acme-smi",
)
