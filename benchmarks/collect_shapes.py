"""Collect the ATen calls of real models, and write them to `src/opmux/tools/conform/real_shapes.json` under "aten".

    pip install transformers diffusers
    PYTHONPATH=src python benchmarks/collect_shapes.py            # all models; names on the command line choose some

Models are built on the meta device with their real sizes but few layers, because layers repeat. They run forward and
backward in bfloat16, and a dispatch mode below autograd records every call of an overload that opmux computes. Of calls
with similar sizes, only the largest and the one with the oddest sizes are written. Hand-written rows under "ops" stay.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from opmux.faces.aten.overloads import table
from opmux.tools.conform import shapes

T = torch.bfloat16
MOST_BYTES = 2 << 30  # maximum bytes of a call's tensors, in the model's dtype
MOST_ROWS = 14  # maximum number of rows per overload
SKIPPED = {"random"}  # families of ops whose results cannot be compared


class Record(TorchDispatchMode):
    """Records the calls of overloads that opmux computes, as rows."""

    def __init__(self, model: str, rows: dict[tuple, set[str]]):
        super().__init__()
        self.model, self.rows = model, rows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ANSWERS:
            return ANSWERS[func](*args)
        overload = func._overloadname
        name = func._schema.name.removeprefix("aten::") + ("" if overload == "default" else f".{overload}")
        op = table().get(name)
        if op is not None and op.family not in SKIPPED:
            options = {k: v for k, v in kwargs.items() if k not in ("device", "layout", "pin_memory")}
            tensors = [t for t in tree_leaves((args, options)) if isinstance(t, Tensor)]
            fits = sum(t.numel() * t.itemsize for t in tensors) <= MOST_BYTES
            if tensors and fits and all(t.numel() for t in tensors):
                self.rows[name, shapes.text_of(args, options, T)].add(self.model)
        return func(*args, **kwargs)


# Meta tensors have no values, so these are the results of ops that read values: a mask is all ones, and an expert gets
# 1/8 of the tokens.
ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._local_scalar_dense.default: lambda t: t.dtype.is_floating_point or 1,
    torch.ops.aten.nonzero.default: lambda t: t.new_empty((max(t.numel() // 8, 1), t.dim()), dtype=torch.long),
}


# ---- the models -----------------------------------------------------------------------------------------------------


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long, device="meta")


def floats(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=T, device="meta")


def hf(name: str, config: str, **sizes: Any) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        import transformers

        sized = getattr(transformers, config)(**sizes)
        sized._attn_implementation = "eager"
        return getattr(transformers, name)(sized)

    return build


def language(build: Callable[[], torch.nn.Module], batch: int, length: int) -> Callable[[], None]:
    def run() -> None:
        model = build().to(T)
        model.train()
        model(input_ids=ids(batch, length), labels=ids(batch, length), use_cache=False).loss.backward()

    return run


def decode(build: Callable[[], torch.nn.Module], batch: int) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            build().to(T).eval()(input_ids=ids(batch, 1))

    return run


def image(build: Callable[[], torch.nn.Module], batch: int, last: bool = False) -> Callable[[], None]:
    """Runs an image model. Batch norms keep float32 parameters, as under autocast."""

    def run() -> None:
        form = torch.channels_last if last else torch.contiguous_format
        model = build().to(T, memory_format=form)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.float()
        model.train()
        x = floats(batch, 3, 224, 224).contiguous(memory_format=form)
        logits = model(pixel_values=x).logits
        torch.nn.functional.cross_entropy(logits.float(), ids(batch)).backward()

    return run


def whisper() -> None:
    model = hf(
        "WhisperForConditionalGeneration", "WhisperConfig", vocab_size=51866, num_mel_bins=128, d_model=1280,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=20, decoder_attention_heads=20,
        encoder_ffn_dim=5120, decoder_ffn_dim=5120,
    )().to(T)  # fmt: skip
    model(input_features=floats(4, 128, 3000), labels=ids(4, 448), use_cache=False).loss.backward()


def t5() -> None:
    build = hf(
        "T5ForConditionalGeneration",
        "T5Config",
        d_model=768,
        d_ff=3072,
        num_heads=12,
        num_layers=2,
        decoder_start_token_id=0,
    )
    build().to(T)(input_ids=ids(8, 512), labels=ids(8, 128), use_cache=False).loss.backward()


def gpt2_step() -> None:
    model = hf("GPT2LMHeadModel", "GPT2Config", n_layer=1)().to(T)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()


def unet(batch: int, side: int, last: bool = False, **config: Any) -> Callable[[], None]:
    def run() -> None:
        from diffusers import UNet2DConditionModel
        from diffusers.models.attention_processor import AttnProcessor

        form = torch.channels_last if last else torch.contiguous_format
        model = UNet2DConditionModel(**config).to(T, memory_format=form)
        model.set_attn_processor(AttnProcessor())
        x = floats(batch, 4, side, side).contiguous(memory_format=form)
        context = floats(batch, 77, config["cross_attention_dim"])
        more = (
            {"text_embeds": floats(batch, 1280), "time_ids": floats(batch, 6)}
            if "addition_embed_type" in config
            else None
        )
        model(
            x, torch.zeros(batch, device="meta"), context, added_cond_kwargs=more
        ).sample.float().square().mean().backward()

    return run


SDXL = dict(
    cross_attention_dim=2048, block_out_channels=(320, 640, 1280), attention_head_dim=(5, 10, 20),
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    transformer_layers_per_block=(1, 1, 1), use_linear_projection=True, addition_embed_type="text_time",
    addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816,
)  # fmt: skip
LLAMA = hf(
    "LlamaForCausalLM", "LlamaConfig", hidden_size=4096, intermediate_size=14336, num_hidden_layers=1,
    num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
)  # fmt: skip
QWEN = hf(
    "Qwen3ForCausalLM", "Qwen3Config", hidden_size=4096, intermediate_size=12288, num_hidden_layers=1,
    num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=151936,
)  # fmt: skip
GEMMA2 = hf(
    "Gemma2ForCausalLM", "Gemma2Config", hidden_size=3584, intermediate_size=14336, num_hidden_layers=2,
    num_attention_heads=16, num_key_value_heads=8, head_dim=256, vocab_size=256000,
)  # fmt: skip
GEMMA3 = hf(
    "Gemma3ForCausalLM", "Gemma3TextConfig", hidden_size=2560, intermediate_size=10240, num_hidden_layers=2,
    num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=262208,
)  # fmt: skip
MIXTRAL = hf(
    "MixtralForCausalLM", "MixtralConfig", hidden_size=4096, intermediate_size=14336, num_hidden_layers=1,
    num_attention_heads=32, num_key_value_heads=8, num_local_experts=8, vocab_size=32000,
)  # fmt: skip
DEEPSEEK = hf("DeepseekV3ForCausalLM", "DeepseekV3Config", num_hidden_layers=2, first_k_dense_replace=1)
MAMBA = hf("MambaForCausalLM", "MambaConfig", hidden_size=2560, num_hidden_layers=1)

MODELS: dict[str, Callable[[], None]] = {
    "resnet-50": image(hf("ResNetForImageClassification", "ResNetConfig"), 32),
    "resnet-50 channels-last": image(hf("ResNetForImageClassification", "ResNetConfig"), 16, last=True),
    "vit-b": image(hf("ViTForImageClassification", "ViTConfig", num_hidden_layers=1), 32),
    "bert-base": language(hf("BertForMaskedLM", "BertConfig", num_hidden_layers=1), 16, 512),
    "gpt2": language(hf("GPT2LMHeadModel", "GPT2Config", n_layer=1), 4, 1024),
    "gpt2 adamw": gpt2_step,
    "t5-base": t5,
    "whisper-large-v3": whisper,
    "llama-3-8b": language(LLAMA, 1, 2048),
    "llama-3-8b decode": decode(LLAMA, 32),
    "qwen3-8b": language(QWEN, 1, 2048),
    "gemma-2-9b": language(GEMMA2, 1, 1024),
    "gemma-3-4b": language(GEMMA3, 1, 1024),
    "mixtral-8x7b": language(MIXTRAL, 1, 2048),
    "deepseek-v3": language(DEEPSEEK, 1, 1024),
    "mamba-2.8b": language(MAMBA, 2, 64),
    "sd-1.5 unet": unet(4, 64, cross_attention_dim=768),
    "sd-1.5 unet channels-last": unet(4, 64, last=True, cross_attention_dim=768),
    "sdxl unet": unet(1, 128, **SDXL),
}


# ---- ops that these models do not call, at their sizes --------------------------------------------------------------

INPUTS = {
    "T[1024x50257]": "gpt2",
    "T[8192x4096]": "llama-3-8b",
    "T[32x12x197x197]": "vit-b",
    "T[2x20x1500x1500]": "whisper-large-v3",
    "T[768x4099]@1,768": "gpt2",
    "T[1023x768]@1536,2": "gpt2",
    "T[4x1024x768]@0,768,1": "gpt2",
    "T[16x2048x7x7]@100352,1,14336,2048": "resnet-50 channels-last",
    "T[3x100003]": "attacked",
}
# op -> several lists of arguments, without the first argument
ALONG: dict[str, list[list[Any]]] = {
    "linalg_vector_norm": [[2, [-1], False], [1, [0], True], [2]],
    "norm.Scalar": [[2]],
    "norm.ScalarOpt_dim": [[2, [-1], True]],
    "sum": [[]],
    "sum.dim_IntList": [[[0], False], [[0, -1], True]],
    "prod": [[]],
    "prod.dim_int": [[-1, False]],
    "amax": [[[-1], True], [[0], False]],
    "amin": [[[-1], False]],
    "max": [[]],
    "min": [[]],
    "max.dim": [[-1, False], [0, True]],
    "min.dim": [[-1, True]],
    "argmax": [[-1, False], [None]],
    "argmin": [[0, False]],
    "logsumexp": [[[-1], False], [[0], True]],
    "any": [[]],
    "any.dim": [[-1, False]],
    "any.dims": [[[0], True]],
    "all.dim": [[0, False]],
    "all.dims": [[[-1], False]],
    "count_nonzero": [[]],
    "count_nonzero.dim_IntList": [[[-1]]],
    "mean": [[]],
    "mean.dim": [[[0], False]],
    "var.correction": [[[-1]], [[0]]],
    "std.correction": [[[-1]]],
    "var_mean.correction": [[[-1]], [[0]]],
    "std_mean.correction": [[[-1]]],
    "cumsum": [[-1], [0]],
    "cumprod": [[-1]],
    "cummax": [[-1]],
    "cummin": [[0]],
    "logcumsumexp": [[-1]],
    "_logcumsumexp": [[0]],
    "_softmax": [[0, False], [-1, False]],
    "_log_softmax": [[0, False]],
}
WHOLE: dict[str, list[tuple[list[Any], str]]] = {
    "_fused_rms_norm": [
        ([f"T[{rows}x{n}]", [n], f"T[{n}]", 1e-6], model)
        for rows, n, model in (
            (8192, 4096, "llama-3-8b"),
            (4096, 7168, "deepseek-v3"),
            (65536, 128, "qwen3-8b"),
            (1001, 3584, "gemma-2-9b"),
        )
    ],
    "_fused_rms_norm_backward": [
        ([f"T[{rows}x{n}]", f"T[{rows}x{n}]", [n], f"float32[{rows}x1]", f"T[{n}]", [True, True]], model)
        for rows, n, model in (
            (8192, 4096, "llama-3-8b"),
            (4096, 7168, "deepseek-v3"),
            (65536, 128, "qwen3-8b"),
            (1001, 3584, "gemma-2-9b"),
        )
    ],
    "glu": [
        (["T[4096x2560]", -1], "sd-1.5 unet"),
        (["T[2x512x3000]", 1], "whisper-large-v3"),
        (["T[1001x194]", -1], "attacked"),
    ],
    "glu_backward": [
        (["T[4096x1280]", "T[4096x2560]", -1], "sd-1.5 unet"),
        (["T[1001x96]", "T[1001x192]", -1], "attacked"),
    ],
    "_native_batch_norm_legit.no_stats": [
        ([f"T[{x}]", f"float32[{c}]", f"float32[{c}]", True, 0.1, 1e-5], model)
        for x, c, model in (
            ("16x2048x7x7", 2048, "attacked"),
            ("8x2856x4x4", 2856, "attacked"),
            ("32x64x112x112", 64, "resnet-50"),
        )
    ],
    "_native_batch_norm_legit_no_training": [
        ([f"T[{x}]", *[f"float32[{c}]"] * 4, 0.1, 1e-5], model)
        for x, c, model in (("16x2048x7x7", 2048, "resnet-50"), ("32x64x112x112", 64, "resnet-50"))
    ],
    "native_batch_norm": [
        ([f"T[{x}]", *[f"float32[{c}]"] * 4, True, 0.1, 1e-5], "attacked")
        for x, c in (("16x2048x7x7", 2048), ("8x2856x4x4", 2856), ("2x4096x3x5", 4096))
    ],
    "native_batch_norm_backward": [
        ([f"T[{x}]", f"T[{x}]", *[f"float32[{c}]"] * 5, True, 1e-5, [True, True, True]], "attacked")
        for x, c in (("16x2048x7x7", 2048), ("8x2856x4x4", 2856), ("2x4096x3x5", 4096))
    ],
    "_weight_norm_interface": [
        (["T[1280x1280x3]", "T[1280x1x1]", 0], "whisper-large-v3"),
        (["T[37x4099]", "T[37x1]", 0], "attacked"),
    ],
    "_weight_norm_interface_backward": [
        (["T[1280x1280x3]", "T[1280x1280x3]", "T[1280x1x1]", "float32[1280x1x1]", 0], "whisper-large-v3")
    ],
}


def by_hand() -> Iterator[tuple[str, str, list[str]]]:
    for op, forms in ALONG.items():
        for (variant, model), rest in zip(INPUTS.items(), (forms * len(INPUTS))[: len(INPUTS)]):
            yield op, json.dumps([[variant, *rest], {}]), [model]
    for op, rows in WHOLE.items():
        for args, model in rows:
            yield op, json.dumps([args, {}]), [model]


# ---- choosing rows --------------------------------------------------------------------------------------------------


def kept(calls: list[tuple[str, set[str]]]) -> Iterator[tuple[str, list[str]]]:
    """For each class of similar calls of an overload: the largest and the oddest call, with all models' names."""
    classes: dict[tuple, list[tuple[str, set[str]]]] = defaultdict(list)
    for text, models in calls:
        classes[shapes.class_of(text)].append((text, models))
    ranked = []
    for members in classes.values():
        names = sorted(set().union(*(m for _, m in members)))
        largest = max(members, key=lambda c: shapes.elements(c[0]))[0]
        oddest = max(members, key=lambda c: (shapes.oddness(c[0]), shapes.elements(c[0])))[0]
        ranked += [(largest, names)] + ([(oddest, names)] if oddest != largest else [])
    # Odd sizes, strided tensors and large calls come first, because kernels have failed for them.
    ranked.sort(key=lambda r: (shapes.oddness(r[0]) > 0, "@" in r[0], shapes.elements(r[0])), reverse=True)
    by_layout = [r for r in ranked if "@" in r[0]], [r for r in ranked if "@" not in r[0]]
    half = MOST_ROWS // 2
    strided = by_layout[0][: max(half, MOST_ROWS - len(by_layout[1]))]
    yield from strided
    yield from by_layout[1][: MOST_ROWS - len(strided)]


def main() -> None:
    rows: dict[tuple, set[str]] = defaultdict(set)
    for name in sys.argv[1:] or MODELS:
        before = len(rows)
        try:
            with torch.device("meta"), Record(name, rows):
                MODELS[name]()
        except (NotImplementedError, RuntimeError) as error:  # an op read values: keep earlier calls
            print(f"{name}: stopped: {str(error).splitlines()[0]}", flush=True)
        print(f"{name}: {len(rows) - before} new calls", flush=True)
    by_op: dict[str, list[tuple[str, set[str]]]] = defaultdict(list)
    for (op, text), models in rows.items():
        by_op[op].append((text, models))
    calls = [(op, text, models) for op in sorted(by_op) for text, models in kept(by_op[op])]
    known = {(op, text) for op, text, _ in calls}
    calls = sorted([*calls, *(row for row in by_hand() if row[:2] not in known)], key=lambda row: row[0])
    shapes.write_calls(calls)
    print(f"{len(calls)} calls of {len(by_op)} overloads")


if __name__ == "__main__":
    main()
