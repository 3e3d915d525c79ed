"""attn_implementation="opmux" in `generate_batch` of `transformers`: the tokens are those of `generate`."""

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
# Model types -> more of their configuration; gemma2 and gpt_oss have layers with a window and without.
TYPES = {
    "llama": {},
    "qwen3": {},
    "mistral": dict(sliding_window=WINDOW),
    "gemma2": dict(sliding_window=WINDOW, attn_logit_softcapping=2.0, query_pre_attn_scalar=20),
    "gpt_oss": dict(sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2),
}
WITH_TABLES = ("llama", "qwen3")  # all layers see all keys
PAGE = 4
NEW = 10  # tokens: more than a page, and than the window
FIELDS = transformers.ContinuousBatchingConfig.__dataclass_fields__
PAGE_NAME = "page_size" if "page_size" in FIELDS else "block_size"  # 5.23, 5.17


@pytest.fixture(autouse=True, scope="module")
def registered():
    opmux.register_attention()


def tiny(kind):
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**SMALL, **TYPES[kind])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, p in model.named_parameters():
        if name.endswith("sinks"):  # zeros at first
            torch.nn.init.normal_(p)
        elif "proj" in name and p.dim() > 1:  # so that tokens depend on those before
            torch.nn.init.normal_(p, std=0.3)
    return model


def prompts(*lengths):
    source = torch.Generator().manual_seed(1)
    return [torch.randint(3, 97, (n,), generator=source).tolist() for n in lengths]


def generated(model, given):
    """The new tokens of each prompt by `generate`, one at a time."""
    each = (torch.tensor([ids]) for ids in given)
    return [model.generate(ids, max_new_tokens=NEW, do_sample=False)[0, ids.shape[1] :].tolist() for ids in each]


def batched(model, given, kept=False, **options):
    """Those by `generate_batch`; a prompt longer than 16 tokens comes in parts, in a batch with tokens of others."""
    options = {PAGE_NAME: PAGE, "num_blocks": 64, "max_batch_tokens": 16} | options
    how = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
    config = transformers.ContinuousBatchingConfig(**options)
    made = model.generate_batch(given, how, config, progress_bar=False, persistent_manager=kept)
    assert all(out.error is None for out in made.values())
    return [out.generated_tokens for out in made.values()]


class Calls:
    """The calls of attention: of decoding the size of a page, the requests and the table, of packed ones the window."""

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
def test_tokens_are_those_of_generate(kind, monkeypatch):
    model, given = tiny(kind), prompts(3, 11, 19)
    want = generated(model, given)
    assert len({token for each in want for token in each}) > NEW  # what is attended to counts
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    assert batched(model, given) == want
    assert model.config._attn_implementation == "opmux"  # the manager has stopped
    assert set(calls.pages) == {PAGE if kind in WITH_TABLES else 1}
    assert 3 in calls.requests  # a step of all requests, in one call for each layer
    full = kind in WITH_TABLES
    assert set(calls.windows) == ({-1} if full else {WINDOW - 1} if kind == "mistral" else {-1, WINDOW - 1})


def test_the_name_with_a_prefix(recwarn):
    """As transformers 5.17 has it; 5.23 warns, and removes the prefix."""
    model, given = tiny("llama"), prompts(5, 9)
    want = generated(model, given)
    model.set_attn_implementation("paged|opmux")
    assert batched(model, given) == want


def test_requests_longer_than_a_block_table(monkeypatch):
    """They are read by their indices, as those of models with windows are."""
    model, given = tiny("llama"), prompts(2, 7)
    want = generated(model, given)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    assert batched(model, given, max_blocks_per_request=3) == want
    assert set(calls.pages) == {PAGE, 1}


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_padded_batches(kind, monkeypatch):
    """With CUDA graphs shapes are padded: by requests of no tokens, and tokens of no request, which are undefined."""
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
    model, given = tiny(kind), prompts(3, 11, 23)
    want = generated(model, given)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    sizes = {"q_padding_interval_size": 8, "kv_padding_interval_size": 32}
    assert batched(model, given, max_requests_per_batch=4, use_cuda_graph=False, **sizes) == want
    assert any(undefined) and set(calls.requests) <= {1, 2, 4} and (4 in calls.requests) is (kind == "llama")


@pytest.mark.slow
def test_compiled_models_have_the_same_tokens(monkeypatch):
    model, given = tiny("llama"), prompts(3, 11)
    want = generated(model, given)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    how = transformers.CompileConfig(backend="aot_eager", mode="default", fullgraph=False)
    torch._dynamo.reset()
    assert batched(model, given, decode_compile_config=how, max_requests_per_batch=2) == want
    assert 2 in calls.requests


def test_prompts_with_a_common_beginning(monkeypatch):
    """Their first pages are shared: read by all, written once."""
    model, (start,) = tiny("llama"), prompts(9)
    given = [[*start, 5, 6], [*start, 7], start]
    want = generated(model, given)
    model.set_attn_implementation("opmux")
    calls = Calls(monkeypatch)
    assert batched(model, given, max_batch_tokens=12) == want
    assert any(len(table) == 3 and len(set(table[:, 0].tolist())) == 1 for table in calls.tables)


def test_a_manager_that_is_kept(monkeypatch):
    model, given = tiny("llama"), prompts(5, 9)
    want = generated(model, given)
    model.set_attn_implementation("opmux")
    for _ in range(2):
        calls = Calls(monkeypatch)
        assert batched(model, given, kept=True) == want and calls.pages
        assert model.config._attn_implementation == "opmux"
    model.destroy_cached_continuous_batching_manager()


def test_other_attention_is_switched_as_before():
    model, given = tiny("llama"), prompts(5)
    want = generated(model, given)
    assert batched(model, given) == want
    model.set_attn_implementation("sdpa")
    assert batched(model, given) == want
    config = transformers.ContinuousBatchingConfig(max_blocks_per_request=3)
    initialization.ensure_decode_fast_path_is_available(model.config, config, False)
    assert config.max_blocks_per_request == 0


def test_registering_again_changes_nothing():
    before = ContinuousBatchingManager.switch_to_cb_friendly_attn
    opmux.register_attention()
    assert ContinuousBatchingManager.switch_to_cb_friendly_attn is before


def test_an_encoder_in_a_model_has_no_cache():
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    layer = types.SimpleNamespace(is_causal=False)
    made, _ = paged.attend(layer, q, k, k, None, scaling=0.3)
    assert torch.equal(made, interface.attend(layer, q, k, k, None, scaling=0.3)[0])


def test_what_it_does_not_take_is_an_error():
    layer, t = types.SimpleNamespace(is_causal=True, layer_idx=0), torch.randn(1, 2, 3, 8)
    with pytest.raises(BadArgument, match="cache must be given: .* is for continuous batching"):
        paged.attend(layer, t, t, t, None)
    cache = types.SimpleNamespace()
    for name, value in (("attention_mask", t), ("dropout", 0.5), ("indices", t)):
        with pytest.raises(BadArgument, match=f"{name} must be"):
            paged.attend(layer, t, t, t, **{"attention_mask": None, name: value}, cache=cache)
    with pytest.raises(BadArgument, match="cache must be as in transformers"):
        paged.attend(layer, t, t, t, None, cache=cache)


def test_a_transformers_with_other_continuous_batching(monkeypatch):
    """Dense attention is registered all the same."""
    monkeypatch.delattr(initialization, "ensure_decode_fast_path_is_available")
    opmux.register_attention()
    assert not hasattr(initialization, "ensure_decode_fast_path_is_available")
