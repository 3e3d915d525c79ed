"""`python -m opmux`: the same as the command `opmux`."""

from .tools.start import main

if __name__ == "__main__":
    main()
