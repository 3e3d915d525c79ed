"""core mentions no vendor and no package of opmux.faces: these register themselves with core."""

import re
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "opmux"
VENDORS = sorted(p.name.removeprefix("_") for p in (SRC / "backends").glob("_[a-z]*") if p.name != "_cpu")
FACES = [
    "tex",
    "te",
    "TE",
    "TEFL",
    "transformer_engine",
    "TransformerEngine",
    "Transformer Engine",
    "transformer_engine_torch",
    "flaggems",
]
LAYERS = ["machine", "tuning", "cpp", "cache", "faces", "specs", "kernels", "backends", "tools"]


def named(text: str) -> list[str]:
    """The vendors, foreign libraries and other opmux packages that a source file names, in code or comments.

    Names are compared word by word: TE_FL_PREFER contains the word TE, and "NVIDIA's" the word nvidia.
    """
    words = set(re.findall(r"[A-Za-z]+", text))
    whole = set(re.findall(r"Transformer Engine|[A-Za-z_]+", text))
    names = {w for w in words if w.casefold() in VENDORS} | ({*words, *whole} & set(FACES))
    return sorted(names) + sorted(set(re.findall(rf"opmux\.(?:{'|'.join(LAYERS)})\b", text)))


def test_core_names_no_face_vendor_or_other_package():
    assert {"nvidia", "amd", "ascend"} <= set(VENDORS)
    violations = {str(p.relative_to(SRC)): named(p.read_text(encoding="utf-8")) for p in (SRC / "core").rglob("*.py")}
    assert len(violations) > 20
    # This is also the entry point group of plugins and vendor packages.
    violations["core/discovery.py"] = [n for n in violations["core/discovery.py"] if n != "opmux.backends"]
    assert {name: names for name, names in violations.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('space == "tex"', ["tex"]),
        ("os.environ['TE_FL_PREFER']", ["TE"]),
        ("# NVIDIA's libraries", ["NVIDIA"]),
        ("# as Transformer Engine does", ["Transformer Engine"]),
        ('import_module("opmux.machine.here")', ["opmux.machine"]),
        ("import transformer_engine.plugin", ["transformer_engine"]),
        ("text = context.te_x or vendor", ["te"]),
        ('policy = "vendor"; opmux.core.registry', []),
    ],
)
def test_a_vendor_or_package_named_in_core_is_reported(text, names):
    assert named(text) == names
