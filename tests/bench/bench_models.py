"""Whole models on the GPU, dense and block-sparse in one process: prefill and decode of Llama, a training step of BERT.

    python tests/bench/bench_models.py
    python tests/bench/bench_models.py --what decode --models llama-3.1-8b --densities 0.1 --blocks 128x128

transformers' models at the shapes of real ones, with random weights and few layers (--layers), without the head that
turns hidden states into words. bsparse_hf patches every projection of attention and MLP. Both models get the same
treatments, each captured in CUDA graphs and timed in turn in two power states (gpu_timing.py): as they are ("graph"),
compiled by torch.compile ("compiled"), and called eagerly. The judged ratio is that of the treatment which serves the
dense model best. `error` is the distance of the patched model's output from that of the same values multiplied dense,
in the same dtype.
"""

import argparse
import copy
import sys
import time
from pathlib import Path

import torch
from gpu_timing import Variant, card, race
from report import environment, write_jsonl
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, BertConfig, BertModel, LlamaConfig, LlamaModel, StaticCache
from transformers.utils import logging

import bsparse_core as bc
from bsparse_hf import BlockSparseModelPatcher
from bsparse_torch import BlockSparseLinear

LLAMAS = {  # hidden, MLP, heads, heads of keys and values
    "llama-3.1-8b": (4096, 14336, 32, 8),
    "qwen2.5-7b": (3584, 18944, 28, 4),
}
LLAMA_LAYERS = r"layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
BERT_LAYERS = r"encoder\.layer\.\d+\.(attention\.(self\.(query|key|value)|output\.dense)|(intermediate|output)\.dense)"
PROMPTS, BATCHES, CONTEXT = (4096, 16384), (1, 16), 512
BERT_BATCH, BERT_LENGTH = 128, 128
WHAT = ("prefill", "decode", "train")
TARGETS = {("prefill", 0.1): 2.8, ("decode", 0.1): 2.2, ("train", 0.25): 2.0}  # over dense
TREATMENTS = ("compiled", "graph", "eager")


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


def bert():
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="bench")
    with torch.device("cuda"):
        return BertModel(config, add_pooling_layer=False).to(torch.bfloat16)


def patched(model, layers, density, block):
    """A block-sparse copy."""
    sparse = copy.deepcopy(model)
    patcher = BlockSparseModelPatcher()
    patcher.add_pattern(layers, density=density, block=block)
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


def variants(name, model, make, treatments):
    """Each treatment of a model, ready to be timed; reasons why others are not, and the seconds of compilation."""
    found, reasons, seconds = [], [], 0.0
    for treatment in treatments:
        torch.compiler.reset()  # what was captured before needs it no more
        start = time.perf_counter()
        run = make(compiled(model) if treatment == "compiled" else model)
        for _ in range(3):  # plans, kernels and the optimizer's state are made before a capture
            run()
        torch.cuda.synchronize()
        seconds += time.perf_counter() - start if treatment == "compiled" else 0
        variant = Variant(f"{name} {treatment}", lambda i, run=run: run(), calls=3, eager=treatment == "eager")
        try:
            variant.prepare()
            found.append(variant)
        except RuntimeError as error:
            torch.cuda.synchronize()
            reasons.append(f"{name} {treatment}: {str(error).splitlines()[0]}")
    return found, reasons, seconds


def error(model, run):
    """Relative distance of the output from the one that the dense product makes of the same values."""
    layers = [module for module in model.modules() if isinstance(module, BlockSparseLinear)]
    ours = run().double()
    for layer in layers:
        layer.backend = "dense"
    theirs = run().double()
    for layer in layers:
        layer.backend = "bsparse"
    return float((ours - theirs).norm() / theirs.norm())


def measure(model, layers, what, make, size, arguments):
    """Rows of one workload: each density and block beside the dense model."""
    dense, reasons, dense_seconds = variants("dense", model, make, arguments.treatments)
    rows = []
    for density in arguments.densities:
        for block in arguments.blocks:
            sparse = patched(model, layers, density, tuple(int(n) for n in block.split("x")))
            row = {"what": what, "size": size, "density": density, "block": block}
            row["error"] = None if what == "train" else error(sparse, make(sparse))
            ours, more, seconds = variants("bsparse", sparse, make, arguments.treatments)
            hot, cool = race([*dense, *ours], arguments.hot, arguments.cool)
            row |= {"hot_ms": hot, "cool_ms": cool, "compile_s": {"dense": dense_seconds, "bsparse": seconds}}
            row |= {"not_timed": [*reasons, *more], "card": card(ours[0])}
            row["ratios"] = {"hot": ratios(hot), "cool": ratios(cool)}
            row["judged"] = min(row["ratios"]["hot"], key=lambda treatment, hot=hot: hot[f"dense {treatment}"])
            rows.append(row)
            print(
                what, size, density, block, row["ratios"], row["error"], row["not_timed"], file=sys.stderr, flush=True
            )
            del sparse, ours
            torch.cuda.empty_cache()
    return rows


def ratios(times):
    """By treatment, where both were timed."""
    both = (t for t in TREATMENTS if f"dense {t}" in times and f"bsparse {t}" in times)
    return {t: times[f"dense {t}"] / times[f"bsparse {t}"] for t in both}


def workloads(arguments):
    """(model's name, what, how it runs, size); the model is made anew for each."""
    for name in arguments.models:
        if "prefill" in arguments.what:
            for tokens in arguments.prompts:
                yield name, "prefill", lambda model, tokens=tokens: prefill(model, tokens), f"{name}, {tokens} tokens"
        if "decode" in arguments.what:
            for batch in arguments.batches:
                yield name, "decode", lambda model, batch=batch: decode(model, batch), f"{name}, batch {batch}"
    if "train" in arguments.what:
        yield None, "train", train, f"bert-base, {BERT_BATCH} x {BERT_LENGTH} tokens"


def table(rows):
    titles = ["what", "density", "block", "judged", "dense ms", "bsparse ms", "hot", "cool", "at least", ""]
    lines = [titles + [f"{treatment} hot" for treatment in TREATMENTS] + ["error"]]
    lines.append(["---"] * len(lines[0]))
    for row in rows:
        hot, cool, judged = row["ratios"]["hot"], row["ratios"]["cool"], row["judged"]
        least = TARGETS.get((row["what"], row["density"]))
        verdict = "" if least is None else "met" if hot[judged] >= least else "MISSED"
        cells = [f"{row['what']}, {row['size']}", row["density"], row["block"], judged]
        cells += [f"{row['hot_ms'][f'{name} {judged}']:.3f}" for name in ("dense", "bsparse")]
        cells += [f"{hot[judged]:.2f}x", f"{cool[judged]:.2f}x" if judged in cool else ""]
        cells += [f"{least}x" if least else "", verdict]
        cells += [f"{hot[treatment]:.2f}x" if treatment in hot else "" for treatment in TREATMENTS]
        lines.append([*cells, "" if row["error"] is None else f"{row['error']:.1e}"])
    text = ["| " + " | ".join(map(str, line)) + " |" for line in lines]
    return "\n".join([*text, *sorted({f"{row['size']}, {reason}" for row in rows for reason in row["not_timed"]})])


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = {"treatments": TREATMENTS, "what": WHAT, "models": tuple(LLAMAS)}
    choices |= {"prompts": PROMPTS, "batches": BATCHES, "densities": (0.1, 0.25)}
    for name, values in choices.items():
        parser.add_argument(f"--{name}", nargs="+", type=type(values[0]), choices=values, default=list(values))
    parser.add_argument("--blocks", nargs="+", default=["128x128", "64x64"])
    parser.add_argument("--layers", type=int, default=4, help="of Llama; BERT has its twelve")
    parser.add_argument("--hot", type=int, default=5, help="rounds without a pause")
    parser.add_argument("--cool", type=int, default=3, help="rounds with 40 ms of idling before each replay")
    parser.add_argument("--commit", help="of these sources, where git does not tell")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of bench_models.jsonl and .md")
    return parser.parse_args(argv)


def main(argv=None):
    arguments = parse(argv)
    logging.disable_progress_bar()
    if bc.devices("cuda") == 0:
        sys.exit("bench_models: no NVIDIA device that bsparse can use here")
    facts = environment(bc.Context("cuda").name, torch.get_num_threads()) | {"llama layers": arguments.layers}
    facts["commit"] = arguments.commit or facts["commit"]
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, what, make, size in workloads(arguments):
        torch.manual_seed(0)
        model, layers = (bert(), BERT_LAYERS) if name is None else (llama(name, arguments.layers), LLAMA_LAYERS)
        rows += measure(model, layers, what, make, size, arguments)
        write_jsonl(arguments.out / "bench_models.jsonl", rows, facts)
        del model
        torch.cuda.empty_cache()
    text = "\n".join([", ".join(f"{name}: {fact}" for name, fact in facts.items()), "", table(rows)])
    print(text)
    (arguments.out / "bench_models.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
