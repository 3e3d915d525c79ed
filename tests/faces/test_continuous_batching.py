"""With attn_implementation="opmux", `generate_batch` of `transformers` gives the same tokens as `generate`."""

import types

import pytest
import torch

import opmux
from opmux.core.errors import BadArgument
from opmux.faces.models import interface, paged

transformers = pytest.importorskip("transformers")
from transformers.generation.continuous_batching import initialization  # noqa: E402
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager  # noqa: E402
from transformers.generation.continuous_batching.model_runner import ModelRunner  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

SMALL = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    vocab_size=97, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None,
    tie_word_embeddings=False,
)  # fmt: skip
WINDOW = 6
# Model type -> additional configuration values; gemma2 and gpt_oss mix layers with and without a window.
TYPES = {
    "llama": {},
    "qwen3": {},
    "mistral": dict(sliding_window=WINDOW),
    "gemma2": dict(sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=20),
    "gpt_oss": dict(sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2),
}
WITH_TABLES = ("llama", "qwen3")  # models in which all layers attend to all keys
PAGE = 4
NEW = 10  # more tokens than a page or the window has
FIELDS = transformers.ContinuousBatchingConfig.__dataclass_fields__
PAGE_NAME = "page_size" if "page_size" in FIELDS else "block_size"  # names in transformers 5.23 and 5.17


@pytest.fixture(autouse=True, scope="module")
def registered():
    opmux.register_attention()


def tiny(kind):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**SMALL, **TYPES[kind])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, p in model.named_parameters():
        if name.endswith("sinks"):  # sinks are initialised to zeros
            torch.nn.init.normal_(p)
        elif "proj" in name and p.dim() > 1:  # makes tokens depend on the ones before
            torch.nn.init.normal_(p, std=0.3)
    return model


def prompts(*lengths):
    source = torch.Generator().manual_seed(1)
    return [torch.randint(3, 97, (n,), generator=source).tolist() for n in lengths]


def generated(model, prompts):
    """The new tokens of each prompt, generated one prompt at a time."""
    each = (torch.tensor([ids]) for ids in prompts)
    return [model.generate(ids, max_new_tokens=NEW, do_sample=False)[0, ids.shape[1] :].tolist() for ids in each]


def batched(model, prompts, persistent=False, **options):
    """The new tokens from `generate_batch`, which splits prompts over 16 tokens and batches them with other prompts."""
    options = {PAGE_NAME: PAGE, "num_blocks": 64, "max_batch_tokens": 16} | options
    generation = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
    config = transformers.ContinuousBatchingConfig(**options)
    answers = model.generate_batch(prompts, generation, config, progress_bar=False, persistent_manager=persistent)
    assert all(out.error is None for out in answers.values())
    return [out.generated_tokens for out in answers.values()]


class Calls:
    """Records the attention calls: page size, number of requests and table of decoding calls, and the window of packed
    calls.
    """

    def __init__(self, monkeypatch):
        self.pages, self.requests, self.tables, self.windows = [], [], [], []
        packed, decode = paged.attention, paged.attention_decode

        def attention(*args, **kwargs):
            self.windows.append(kwargs["window"][0])
            return packed(*args, **kwargs)

        def attention_decode(q, k_cache, *args, **kwargs):
            self.pages.append(k_cache.shape[1])
            self.requests.append(q.shape[0])
            self.tables.append(kwargs["table"].clone())
            return decode(q, k_cache, *args, **kwargs)

        monkeypatch.setattr(paged, "attention", attention)
        monkeypatch.setattr(paged, "attention_decode", attention_decode)


@pytest.mark.parametrize("kind", TYPES)
def test_generate_batch_gives_the_tokens_of_generate(kind, monkeypatch):
    model, requests = tiny(kind), prompts(3, 11, 19)
    want = generated(model, requests)
    # The tokens differ from each other, so a wrong attention would change some of them.
    assert len({token for each in want for token in each}) > NEW
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    assert batched(model, requests) == want
    assert model.config._attn_implementation == "opmux"  # restored when the manager stopped
    assert set(calls.pages) == {PAGE if kind in WITH_TABLES else 1}
    assert 3 in calls.requests  # a step decodes all 3 requests, one call per layer
    full = kind in WITH_TABLES
    assert set(calls.windows) == ({-1} if full else {WINDOW - 1} if kind == "mistral" else {-1, WINDOW - 1})


def test_the_paged_prefix_is_accepted(recwarn):
    """transformers 5.17 needs the prefix; 5.23 warns and removes it."""
    model, requests = tiny("llama"), prompts(5, 9)
    want = generated(model, requests)
    model.set_attn_implementation("paged|opmux")
    assert batched(model, requests) == want


def test_requests_longer_than_a_block_table_give_the_same_tokens(monkeypatch):
    """The cache of such requests is read through token indices instead of a block table, as in models with windows."""
    model, requests = tiny("llama"), prompts(2, 7)
    want = generated(model, requests)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    assert batched(model, requests, max_blocks_per_request=3) == want
    assert set(calls.pages) == {PAGE, 1}


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_padded_batches_give_the_same_tokens(kind, monkeypatch):
    """CUDA graphs pad batches with empty requests and tokens outside of all requests. Their output is undefined."""
    before, packed = ModelRunner.__init__, paged.attention
    undefined = []

    def padding(runner, *args, **kwargs):
        before(runner, *args, **kwargs)
        runner.pad_inputs = True

    def attention(q, k, v, *, cu_seqlens_q, **kwargs):
        o = packed(q, k, v, cu_seqlens_q=cu_seqlens_q, **kwargs).clone()
        undefined.append(o[cu_seqlens_q[-1] :].fill_(torch.nan).numel())
        return o

    monkeypatch.setattr(ModelRunner, "__init__", padding)
    monkeypatch.setattr(paged, "attention", attention)
    model, requests = tiny(kind), prompts(3, 11, 23)
    want = generated(model, requests)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    sizes = {"q_padding_interval_size": 8, "kv_padding_interval_size": 32}
    assert batched(model, requests, max_requests_per_batch=4, use_cuda_graph=False, **sizes) == want
    assert any(undefined) and set(calls.requests) <= {1, 2, 4} and (4 in calls.requests) is (kind == "llama")


@pytest.mark.slow
def test_compiled_models_give_the_same_tokens(monkeypatch):
    model, requests = tiny("llama"), prompts(3, 11)
    want = generated(model, requests)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    compile_options = transformers.CompileConfig(backend="aot_eager", mode="default", fullgraph=False)
    torch._dynamo.reset()
    assert batched(model, requests, decode_compile_config=compile_options, max_requests_per_batch=2) == want
    assert 2 in calls.requests


def test_prompts_with_a_common_prefix_share_pages(monkeypatch):
    """One request writes the shared pages, and all requests read them."""
    model, (start,) = tiny("llama"), prompts(9)
    requests = [[*start, 5, 6], [*start, 7], start]
    want = generated(model, requests)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    assert batched(model, requests, max_batch_tokens=12) == want
    assert any(len(table) == 3 and len(set(table[:, 0].tolist())) == 1 for table in calls.tables)


def test_a_persistent_manager_can_be_reused(monkeypatch):
    model, requests = tiny("llama"), prompts(5, 9)
    want = generated(model, requests)
    model.set_attn_implementation("opmux")
    for _ in range(2):
        calls = Calls(monkeypatch)
        assert batched(model, requests, persistent=True) == want and calls.pages
        assert model.config._attn_implementation == "opmux"
    model.destroy_cached_continuous_batching_manager()


def test_other_attention_implementations_still_work():
    model, requests = tiny("llama"), prompts(5)
    want = generated(model, requests)
    assert batched(model, requests) == want
    model.set_attn_implementation("sdpa")
    assert batched(model, requests) == want
    config = transformers.ContinuousBatchingConfig(max_blocks_per_request=3)
    initialization.ensure_decode_fast_path_is_available(model.config, config, False)
    assert config.max_blocks_per_request == 0


def test_registering_again_changes_nothing():
    before = ContinuousBatchingManager.switch_to_cb_friendly_attn
    opmux.register_attention()
    assert ContinuousBatchingManager.switch_to_cb_friendly_attn is before


def test_an_encoder_in_a_model_uses_dense_attention_without_a_cache():
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    layer = types.SimpleNamespace(is_causal=False)
    output, _ = paged.attend(layer, q, k, k, None, scaling=0.3)
    assert torch.equal(output, interface.attend(layer, q, k, k, None, scaling=0.3)[0])


def test_unsupported_arguments_raise():
    layer, t = types.SimpleNamespace(is_causal=True, layer_idx=0), torch.randn(1, 2, 3, 8)
    with pytest.raises(BadArgument, match="cache must be given: .* is for continuous batching"):
        paged.attend(layer, t, t, t, None)
    cache = types.SimpleNamespace()
    for name, value in (("attention_mask", t), ("dropout", 0.5), ("indices", t)):
        with pytest.raises(BadArgument, match=f"{name} must be"):
            paged.attend(layer, t, t, t, **{"attention_mask": None, name: value}, cache=cache)
    with pytest.raises(BadArgument, match="cache must be as in transformers"):
        paged.attend(layer, t, t, t, None, cache=cache)


def test_dense_attention_is_registered_with_an_unknown_transformers_version(monkeypatch):
    """If transformers lacks the functions that continuous batching hooks into, only dense attention is registered."""
    monkeypatch.delattr(initialization, "ensure_decode_fast_path_is_available")
    opmux.register_attention()
    assert not hasattr(initialization, "ensure_decode_fast_path_is_available")
