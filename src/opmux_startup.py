"""Makes an unmodified `import transformer_engine` run on opmux. Python runs this at each start (opmux_startup.pth).

`pip install opmux[te]` installs NVIDIA's Python layer without its compiled extension. The layer's own loader then
raises, and so does every program that imports the layer because it is installed: accelerate, peft, transformers'
Trainer. So the first import of the layer installs `opmux.te`. Until then nothing is imported, and a start of Python
takes 0.5 ms longer.

A vendor's package that was written for FlagGems imports `backend_utils`. If no other module has that name, the import
gets opmux's module, so that the vendor's own tests can import the package directly.

The layer is left unchanged if NVIDIA's extension is installed. OPMUX_TE_STARTUP=0 turns all of this off.

If a library that opmux can serve is not installed, the error of its import has one more line, which says how to run the
program on opmux.

`opmux run --as NAME program` sets OPMUX_RUN_AS for the processes that the program starts. In these, the first import of
the library gets opmux's modules, as in the program itself.
"""

import os
import sys

LAYER = "transformer_engine"
SERVED = (f"{LAYER}.plugin", f"{LAYER}.plugins", "backend_utils")  # served even if NVIDIA's extension is installed
EXTENSIONS = ("transformer-engine-cu12", "transformer-engine-cu13", "transformer-engine-torch")  # its packages


LIBRARIES = {  # a name in OPMUX_RUN_AS -> when one of these modules is imported, opmux's are installed
    LAYER: (LAYER, f"{LAYER}_torch"),
    "liger_kernel": ("liger_kernel",),
    "flag_gems": ("flag_gems",),
}


class RunAs:
    """Installs opmux's modules at the first import of a library that OPMUX_RUN_AS names."""

    def __init__(self, words):
        self.libraries = [word for word in words if word in LIBRARIES]
        self.shadow = "shadow" in words
        self.names = {name for library in self.libraries for name in LIBRARIES[library]}

    def find_spec(self, name, path=None, target=None):
        if name not in self.names:
            return None
        # a new list, because the import that calls this function iterates over the old one
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]
        from opmux import imports
        from opmux.faces import compat

        compat.reporting = True
        compat.install(*self.libraries, shadow=self.shadow)
        return imports.finder.find_spec(name, path, target)


class Finder:
    """Finds the layer as Python does, and installs `opmux.te` before the layer's first line runs."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != LAYER and name not in SERVED:
            return None
        from importlib import machinery
        from pathlib import Path

        spec = machinery.PathFinder.find_spec(name, path, target)
        if name in SERVED:
            if spec is not None:
                return None  # another module of that name takes precedence
            from opmux import imports

            return imports.at_start(name, path, target)
        if spec is None or not isinstance(spec.loader, machinery.SourceFileLoader):
            return spec
        if not Path(spec.loader.path).with_name("pytorch").is_dir():
            return spec  # another package of that name; leave it unchanged

        class Loader(machinery.SourceFileLoader):
            def exec_module(self, module):
                if not has_extension(self.path):
                    from opmux.faces.te import boot

                    boot.install("startup")
                super().exec_module(module)

        spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


def has_extension(layer: str) -> bool:
    """Whether NVIDIA's compiled extension is installed or built, or another program has replaced it."""
    from importlib import metadata, util
    from pathlib import Path

    package = Path(layer).parent
    if any(file for at in (package.parent, package, package / "wheel_lib") for file in at.glob(f"{LAYER}_torch*.so")):
        return True
    if f"{LAYER}_torch" in sys.modules or util.find_spec(f"{LAYER}_torch") is not None:
        return True
    for name in EXTENSIONS:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        return True
    return False


class Hint:
    """The last finder: for a library that is not installed, raises the usual error with a line about opmux.

    Only an import statement gets the error. `importlib.util.find_spec`, with which packages check whether a library is
    installed, still returns None.
    """

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        library = next((library for library, names in LIBRARIES.items() if name in names), None)
        caller = sys._getframe(1).f_back  # importlib has no API that distinguishes an import from `find_spec`
        if library is None or caller is None or caller.f_code.co_name != "_find_and_load_unlocked":
            return None
        for other in sys.meta_path[sys.meta_path.index(cls) + 1 :]:  # finders that were added later
            spec = other.find_spec(name, path, target) if hasattr(other, "find_spec") else None
            if spec is not None:
                return spec
        error = ModuleNotFoundError(f"No module named {name!r}", name=name)
        error.add_note(f'opmux serves this name: opmux run --as {library} ..., or opmux.compat.install("{library}")')
        raise error


if os.environ.get("OPMUX_TE_STARTUP") != "0" and Finder not in sys.meta_path:
    sys.meta_path.insert(0, Finder)
    sys.meta_path.append(Hint)
if os.environ.get("OPMUX_RUN_AS"):
    sys.meta_path.insert(0, RunAs(os.environ["OPMUX_RUN_AS"].split(",")))
