"""Whole models for bench_models.py: transformers' Llama and BERT at the shapes of real ones, and what they do."""

import copy

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, BertConfig, BertModel, LlamaConfig, LlamaModel, StaticCache

from bsparse_hf import BlockSparseModelPatcher

LLAMAS = {  # hidden, MLP, heads, heads of keys and values
    "llama-3.1-8b": (4096, 14336, 32, 8),
    "qwen2.5-7b": (3584, 18944, 28, 4),
}
LLAMA_LAYERS = r"layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
BERT_LAYERS = r"encoder\.layer\.\d+\.(attention\.(self\.(query|key|value)|output\.dense)|(intermediate|output)\.dense)"
PROMPTS, BATCHES, CONTEXT = (4096, 16384), (1, 16), 512
BERT_BATCH, BERT_LENGTH = 128, 128
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}


def attention(module, query, key, value, mask, scaling=None, **rest):
    """Of [batch, heads, tokens, features], without what transformers' sdpa adds where a model is compiled or captured.

    That is a mask that masks nothing, or what is_causal says better, and copies of keys and values for each head of a
    group: with one token, the heads of a group are rows of one product.
    """
    batch, heads, tokens, features = query.shape
    if tokens == 1:
        rows = query.view(batch, key.shape[1], -1, features)
        y = scaled_dot_product_attention(rows, key, value, mask, scale=scaling)  # [batch, groups, heads of one, .]
        return y.reshape(batch, 1, heads, features), None
    grouped = key.shape[1] != heads
    y = scaled_dot_product_attention(
        query, key, value, mask, is_causal=module.is_causal, scale=scaling, enable_gqa=grouped
    )
    return y.transpose(1, 2), None


AttentionInterface.register("bench", attention)


def llama(name, layers):
    """In bf16, for inference."""
    hidden, mlp, heads, kv_heads = LLAMAS[name]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=mlp,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        num_hidden_layers=layers,
        vocab_size=1024,
        max_position_embeddings=max(PROMPTS),
        attn_implementation="bench",
    )
    with torch.device("cuda"):
        return LlamaModel(config).to(torch.bfloat16).eval().requires_grad_(False)


def bert(dtype):
    """For training."""
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="bench")
    with torch.device("cuda"):
        return BertModel(config, add_pooling_layer=False).to(dtype)


def patched(model, density, block):
    """A block-sparse copy; block is like "128x64"."""
    sparse, patcher = copy.deepcopy(model), BlockSparseModelPatcher()
    names = LLAMA_LAYERS if isinstance(model, LlamaModel) else BERT_LAYERS
    patcher.add_pattern(names, density=density, block=tuple(map(int, block.split("x"))))
    patcher.patch_model(sparse)
    return sparse


def ids(*shape):
    return torch.randint(1024, shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0))


def prefill(model, tokens):
    """A function of no arguments: one forward of a prompt."""
    prompt = ids(1, tokens)

    def run():
        with torch.no_grad():
            return model(input_ids=prompt, use_cache=False).last_hidden_state

    return run


def decode(model, batch):
    """One step for each of a batch of sequences, in the middle of a cache of CONTEXT tokens."""
    words, position = ids(batch, 1), torch.tensor([CONTEXT // 2], device="cuda")
    cache = StaticCache(config=model.config, max_cache_len=CONTEXT)
    with torch.no_grad():
        uncompiled(model)(input_ids=ids(batch, CONTEXT // 2), past_key_values=cache, use_cache=True)
    mask = torch.ones(batch, CONTEXT // 2 + 1, dtype=torch.bool, device="cuda")
    mask = torch.nn.functional.pad(mask, (0, CONTEXT // 2 - 1))[:, None, None, :]  # bool [batch, 1, 1, CONTEXT]
    lengths = [layer.cumulative_length for layer in cache.layers]
    starts = [length.clone() for length in lengths]

    def run():
        torch._foreach_copy_(lengths, starts)  # every step writes the same place, so that all cost the same
        with torch.no_grad():
            return model(
                input_ids=words,
                attention_mask=mask,
                position_ids=position[None],
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state

    return run


def train(model):
    """Forward, backward and AdamW, from the gradient that a head would send."""
    words = ids(BERT_BATCH, BERT_LENGTH)
    upstream = torch.randn(BERT_BATCH, BERT_LENGTH, model.config.hidden_size, device="cuda", dtype=model.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True, capturable=True)

    def run():
        optimizer.zero_grad(set_to_none=True)
        output = model(input_ids=words).last_hidden_state
        output.backward(upstream)
        optimizer.step()
        return output

    return run


def compiled(model):
    """Llama as a whole; BERT layer by layer, which is quicker: all layers share what is compiled."""
    if isinstance(model, LlamaModel):
        return torch.compile(model, dynamic=False)
    twin = copy.deepcopy(model)
    for module in (twin.embeddings, *twin.encoder.layer):
        module.compile()
    return twin


def uncompiled(model):
    return getattr(model, "_orig_mod", model)
