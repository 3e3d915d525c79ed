"""A pytest plugin that compiles the native library with GCC's address and undefined-behaviour sanitizers."""

from opmux.cpp import library as native_library

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize=vptr", "-g1")
_plain = native_library.flags

native_library.flags = lambda: (*_plain(), *FLAGS)

if __name__ == "__main__":
    native_library.compile()
