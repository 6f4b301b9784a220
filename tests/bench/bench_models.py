"""Whole models on the GPU, dense and block-sparse in one process: prefill and decode of Llama, a training step of BERT.

    python tests/bench/bench_models.py
    python tests/bench/bench_models.py --what decode --models llama-3.1-8b --densities 0.1 --blocks 128x128

transformers' models at the shapes of real ones, with random weights and few layers (--layers), without the head that
turns hidden states into words. bsparse_hf patches every projection of attention and MLP. Each row is timed as CUDA
graphs, in turn with the dense model and in two power states (gpu_timing.py), and eagerly. `error` is the distance of
the patched model's output from that of the same values multiplied dense, in the same dtype.
"""

import argparse
import copy
import sys
from pathlib import Path

import torch
from gpu_timing import Variant, card, race
from report import environment, write_jsonl
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel, StaticCache
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
TARGETS = {("prefill", 0.1): 2.8, ("decode", 0.1): 2.2, ("train", 0.25): 2.0}  # over dense, as CUDA graphs


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
        attn_implementation="sdpa",
    )
    with torch.device("cuda"):
        return LlamaModel(config).to(torch.bfloat16).eval().requires_grad_(False)


def bert():
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="sdpa")
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
        model(input_ids=ids(batch, CONTEXT // 2), past_key_values=cache, use_cache=True)
    mask = torch.ones(batch, CONTEXT // 2 + 1, dtype=torch.bool, device="cuda")
    mask = torch.nn.functional.pad(mask, (0, CONTEXT // 2 - 1))[:, None, None, :]  # bool [batch, 1, 1, CONTEXT]

    def run():
        _rewind(cache)
        with torch.no_grad():
            return model(
                input_ids=words,
                attention_mask=mask,
                position_ids=position[None],
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state

    return run


def _rewind(cache):
    """Every step writes the same place, so that any number of steps costs the same."""
    for layer in cache.layers:
        length = getattr(layer, "cumulative_length", None)
        if isinstance(length, torch.Tensor):
            length.fill_(CONTEXT // 2)
        elif length is not None:
            layer.cumulative_length = CONTEXT // 2


def train(model):
    """Forward, backward and AdamW."""
    words = ids(BERT_BATCH, BERT_LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True, capturable=True)

    def run():
        optimizer.zero_grad(set_to_none=True)
        output = model(input_ids=words).last_hidden_state
        output.float().square().mean().backward()
        optimizer.step()
        return output

    return run


def variants(name, run):
    """Its graph, where it can be captured, and eager calls; the reason where it cannot."""
    found = [Variant(name, lambda i: run(), calls=3), Variant(f"{name}_eager", lambda i: run(), calls=3, eager=True)]
    for _ in range(3):  # plans, kernels and the optimizer's state are made before a capture
        run()
    found[1].prepare()
    try:
        found[0].prepare()
    except RuntimeError as error:
        torch.cuda.synchronize()
        return found[1:], str(error).splitlines()[0]
    return found, ""


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
    dense, reason = variants("dense", make(model))
    rows = []
    for density in arguments.densities:
        for block in arguments.blocks:
            sparse = patched(model, layers, density, tuple(int(n) for n in block.split("x")))
            run = make(sparse)
            row = {"what": what, "size": size, "density": density, "block": block}
            row["error"] = None if what == "train" else error(sparse, run)
            ours, why = variants("bsparse", run)
            hot, cool = race([*dense, *ours], arguments.hot, arguments.cool)
            row |= {"hot_ms": hot, "cool_ms": cool, "no_graph": reason or why, "card": card(ours[0])}
            graphs = "dense" in hot and "bsparse" in hot
            row["ratio"] = {"eager": hot["dense_eager"] / hot["bsparse_eager"]}
            for state, times in (("hot", hot), ("cool", cool)):
                if graphs and times:
                    row["ratio"][state] = times["dense"] / times["bsparse"]
            rows.append(row)
            print(what, size, density, block, row["ratio"], row["error"], row["no_graph"], file=sys.stderr, flush=True)
            del sparse, run, ours
            torch.cuda.empty_cache()
    return rows


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
    lines = ["| what | density | block | dense ms | bsparse ms | hot | cool | eager | at least | | error |"]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ratio, ms = row["ratio"], row["hot_ms"]
        least = TARGETS.get((row["what"], row["density"]))
        reached = ratio.get("hot", ratio["eager"])
        verdict = "" if least is None else "met" if reached >= least else "MISSED"
        times = (ms.get(name, ms[f"{name}_eager"]) for name in ("dense", "bsparse"))
        cells = [f"{row['what']}, {row['size']}", row["density"], row["block"], *(f"{time:.3f}" for time in times)]
        cells += [f"{ratio[state]:.2f}x" if state in ratio else "" for state in ("hot", "cool", "eager")]
        cells += [f"{least}x" if least else "", verdict, "" if row["error"] is None else f"{row['error']:.1e}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(
        [*lines, *sorted({f"no graph, {row['size']}: {row['no_graph']}" for row in rows if row["no_graph"]})]
    )


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = {"what": WHAT, "models": tuple(LLAMAS), "prompts": PROMPTS, "batches": BATCHES, "densities": (0.1, 0.25)}
    for name, values in choices.items():
        parser.add_argument(f"--{name}", nargs="+", type=type(values[0]), choices=values, default=list(values))
    parser.add_argument("--blocks", nargs="+", default=["128x128", "64x64"])
    parser.add_argument("--layers", type=int, default=3, help="of Llama; BERT has its twelve")
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
