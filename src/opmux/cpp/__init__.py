"""Compiles and loads C++: the native library, whose sources are in `native/`, and the launches that it runs.

Imports core, cache.py and settings.py. Start with library.py; build.py runs the compiler.
"""
