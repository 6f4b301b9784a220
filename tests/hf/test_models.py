"""What models do besides a forward pass: generate, train, compile, on several families and on real weights."""

import copy

import pytest
import torch
import torch._dynamo.testing

import bsparse_hf


def dense_twin(model):
    """The same model with the zeros in place."""
    return copy.deepcopy(model).dequantize()


@pytest.mark.parametrize(("family", "head"), [("gpt2", "LMHeadModel"), ("llama", "ForCausalLM")])
def test_generates_as_its_dense_twin(make, patch, tokens, family, head):
    model = make(family, head)
    patch(model)
    options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(tokens)}
    assert torch.equal(model.generate(tokens, **options), dense_twin(model).generate(tokens, **options))


def test_an_encoder_and_decoder(make, patch, tokens):
    model = make("t5", "ForConditionalGeneration")
    patch(model, r".*\.(q|k|v|o|wi|wo)")
    with torch.no_grad():
        logits = model(input_ids=tokens, decoder_input_ids=tokens).logits
        expected = dense_twin(model)(input_ids=tokens, decoder_input_ids=tokens).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_layers_shared_over_depth(make, patch, tokens, tmp_path):
    model = make("albert", "ForMaskedLM")
    report = patch(model, r"albert\..*")
    assert len([row for row in report.patched if ".query" in row.name]) == 1
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(bsparse_hf.load(tmp_path)(tokens).logits, model(tokens).logits)


def test_a_mixture_of_experts_loses_its_dense_parts_only(make, patch, tokens, tmp_path):
    model = make("mixtral", "ForCausalLM")
    with pytest.warns(UserWarning, match="stacks of fused experts"):
        patch(model, r".*\.self_attn\..*")
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(bsparse_hf.load(tmp_path)(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_the_dense_twin(make, patch, tokens, checkpointing):
    model = make("llama", "ForCausalLM").train()
    patch(model)
    dense = dense_twin(model)
    if checkpointing:
        model.gradient_checkpointing_enable()
    for each in (model, dense):
        each(tokens, labels=tokens).loss.backward()
    layer, linear = model.model.layers[0].mlp.down_proj, dense.model.layers[0].mlp.down_proj
    kept = layer.pattern.mask().repeat_interleave(16, 0).repeat_interleave(16, 1)  # [out, in]
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.values.copy_(layer.values.grad)
    torch.testing.assert_close(twin.to_dense().detach(), linear.weight.grad * kept, rtol=1e-4, atol=1e-6)


def test_compiles_as_one_graph(make, patch, tokens):
    model = make("llama")
    patch(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        expected = model(tokens).last_hidden_state
        torch.testing.assert_close(compiled(tokens).last_hidden_state, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("family", "head"), [("bert", "MaskedLM"), ("llama", "CausalLM")])
def test_trains_as_one_graph(make, patch, tokens, family, head):
    torch.compiler.reset()
    model = make(family, f"For{head}")
    patch(model)
    twin = copy.deepcopy(model)
    model.compile(fullgraph=True, backend="aot_eager")
    for each in (model, twin):
        each(input_ids=tokens)[0].square().mean().backward()
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


@torch.no_grad()
def test_layers_compiled_one_by_one_share_two_graphs(make, patch, tokens):
    torch.compiler.reset()
    model = make("llama", num_hidden_layers=6)
    patch(model)
    expected = model(tokens, use_cache=False)[0]
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    for layer in model.layers:
        layer.compile(fullgraph=True, backend=graphs)
    torch.testing.assert_close(model(tokens, use_cache=False)[0], expected, rtol=1e-5, atol=1e-5)
    assert graphs.frame_count == 2
