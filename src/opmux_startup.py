"""Run by Python at each start (opmux_startup.pth): an unmodified `import transformer_engine` runs on opmux.

`pip install opmux[te]` installs NVIDIA's Python layer without its compiled extension. Its own loader then raises, and
with it every program that imports the layer because it found it: accelerate, peft, transformers' Trainer. So the first
import of the layer installs `opmux.te`. Until then nothing is imported, and a start of Python takes 0.5 ms longer.

A vendor's package that was written for FlagGems imports `backend_utils`: where no other module has that name, opmux's
is found, so that the vendor's own tests can import the package directly.

Nothing is done for the layer where NVIDIA's extension is installed, and nothing at all with
OPMUX_TE_STARTUP=0.
"""

import os
import sys

LAYER = "transformer_engine"
PLUGINS = (f"{LAYER}.plugin", f"{LAYER}.plugins")  # on top of NVIDIA's own build of the layer too
EXTENSIONS = ("transformer-engine-cu12", "transformer-engine-cu13", "transformer-engine-torch")  # NVIDIA's


class Finder:
    """Finds the layer as Python does, and has `opmux.te` installed before its first line runs."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in PLUGINS:
            return find_plugins(name, path)
        if name != LAYER:
            return None
        from importlib import machinery
        from pathlib import Path

        spec = machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, machinery.SourceFileLoader):
            return spec
        if not Path(spec.loader.path).with_name("pytorch").is_dir():
            return spec  # another package of that name

        class Loader(machinery.SourceFileLoader):
            def exec_module(self, module):
                if not has_extension(self.path):
                    from opmux.faces.te import boot

                    boot.install("startup")
                super().exec_module(module)

        spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


class BackendUtils:
    """The last finder: FlagGems's own module of this name comes first."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "backend_utils":
            return None
        from importlib import util
        from pathlib import Path

        ours = util.find_spec("opmux")
        if ours is None or not ours.submodule_search_locations:
            return None
        file = Path(next(iter(ours.submodule_search_locations)), "backends", "backend_utils.py")
        return util.spec_from_file_location(name, file) if file.is_file() else None


def find_plugins(name, path):
    """Our modules below the layer's name, unless the installed layer has some of its own."""
    from opmux.runtime.te_plugins import PluginNames

    made = PluginNames()
    found = made.find_spec(name, path)
    if found is not None:
        made.install()
    return found


def has_extension(layer: str) -> bool:
    """Whether NVIDIA's compiled extension is installed or built, or another program has put one in its place."""
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


if os.environ.get("OPMUX_TE_STARTUP") != "0" and Finder not in sys.meta_path:
    sys.meta_path.insert(0, Finder)
    sys.meta_path.append(BackendUtils)
