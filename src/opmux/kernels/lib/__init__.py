"""The kernel toolkit: launching, configurations, shared device functions, and running kernels without a GPU."""
