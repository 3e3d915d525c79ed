"""The faster interpreter rejects what Triton's interpreter rejects."""

import numpy as np
import pytest

pytest.importorskip("triton")
import triton.language as tl

MODE = "interpret"


@pytest.mark.parametrize(
    "shape, error", [([3], ValueError), ([8, 0], ValueError), ([8.0], TypeError), ([tl.constexpr(8), 3], ValueError)]
)
def test_invalid_block_shapes_raise(shape, error):
    for _ in range(2):  # a valid shape is cached after the first time
        tl.block_type(tl.float32, [8])
        with pytest.raises(error):
            tl.block_type(tl.float32, shape)


def test_block_types_are_equal_if_shape_and_element_are():
    types = [tl.block_type(ty, [8, 4]) for ty in (tl.float32, tl.int32, tl.pointer_type(tl.float32), tl.float32)]
    assert [t.name for t in types] == [f"<['8', '4'], {e}>" for e in ("fp32", "int32", "pointer<fp32>", "fp32")]
    assert types[0] == types[3] and types[0] != types[1] and types[0].numel == 32
    assert types[0] != tl.block_type(tl.float32, [4, 8])


def test_dtypes_map_to_numpys():
    from triton.runtime import interpreter

    kinds = [interpreter._get_np_dtype(t) for t in (tl.float16, tl.pointer_type(tl.float16), tl.int1, tl.uint8)]
    assert kinds == [np.float16, np.uint64, np.bool_, np.uint8]
    assert interpreter._get_np_dtype(tl.block_type(tl.pointer_type(tl.int8), [4])) == np.uint64
