"""Compiles and loads the native library, whose C++ is in `native/`, and controls the kernel launches in C++.

Imports core, cache.py and settings.py. Start with library.py; build.py runs the compiler.
"""
