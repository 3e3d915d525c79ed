"""p-norm distances between all pairs of vectors, and their gradients: ATen's ops behind `torch.cdist` and `F.pdist`.

Each op has ATen's name and arguments; its reference is torch's own op.
"""

from .index import declare

TABLE = {
    "_cdist_forward": "x1: Tensor, x2: Tensor, p: float, compute_mode: int | None",
    "_cdist_backward": "grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor",
    "_pdist_forward": "self: Tensor, p: float = 2.0",
    "_pdist_backward": "grad: Tensor, self: Tensor, p: float, pdist: Tensor",
}

ops = declare(TABLE, __name__)
