"""ATen's distances between all pairs of vectors, by a p-norm, and their gradients: `torch.cdist` and `F.pdist`.

Each is torch's own op, under ATen's name and with its arguments; torch's op is the reference.
"""

from .index import declare

TABLE = {
    "_cdist_forward": "x1: Tensor, x2: Tensor, p: float, compute_mode: int | None",
    "_cdist_backward": "grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor",
    "_pdist_forward": "self: Tensor, p: float = 2.0",
    "_pdist_backward": "grad: Tensor, self: Tensor, p: float, pdist: Tensor",
}

ops = declare(TABLE, __name__)
