"""Fine-tuning on labels, distillation from a dense model, and evaluation; for dense, masked and sparse models alike."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from data import PADDING, Rows, batch_count, batches, lengths, trimmed
from torch import Tensor, nn

SPECIAL_TOKENS = (101, 102)  # [CLS], [SEP]


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    warmup: fraction of the steps over which the learning rate rises to lr; then it falls linearly to zero.
    hidden: weight of the distance between hidden states beside the divergence of the outputs; for distillation.
    word_drop: half of the rows lose this fraction of their words, others each time they are read.
    """

    lr: float
    epochs: float
    batch: int
    warmup: float = 0.1
    weight_decay: float = 0.01
    hidden: float = 0.0
    word_drop: float = 0.0

    def steps(self, rows: int) -> int:
        """Optimizer steps over so many rows."""
        return max(1, round(self.epochs * batch_count(rows, self.batch)))


Report = Callable[[], None]  # called after each optimizer step


class Pruner(Protocol):
    """What removes blocks during training: GradualPruner, or BlockShrinker."""

    def observe(self) -> None: ...  # between backward and the optimizer's step

    def step(self) -> None: ...  # after it


def fine_tune(model: nn.Module, rows: Rows, recipe: Recipe, seed: int, after_step: Report) -> None:
    """Trains the model in place to give the labels of rows."""

    def loss(index: Tensor, ids: Tensor) -> Tensor:
        return F.cross_entropy(outputs(model, ids).logits.float(), rows.labels[index])

    _train(model, rows, recipe, seed, after_step, loss)


def distil(
    model: nn.Module,
    teacher: nn.Module,
    rows: Rows,
    recipe: Recipe,
    seed: int,
    after_step: Report,
    pruner: Pruner | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Trains the model in place to answer as the teacher does, on rows whose labels are not used.

    The loss is the divergence of the two answers plus recipe.hidden times the mean squared distance of the hidden
    states after every encoder layer, tokens of padding left out.
    """

    def loss(index: Tensor, ids: Tensor) -> Tensor:
        with torch.no_grad():
            want = outputs(teacher, ids, recipe.hidden > 0)
        got = outputs(model, ids, recipe.hidden > 0)
        answer, target = got.logits.float().log_softmax(1), want.logits.float().log_softmax(1)  # [rows, 2]
        divergence = F.kl_div(answer, target, log_target=True, reduction="batchmean")
        if recipe.hidden == 0:
            return divergence
        real = (ids != PADDING).float()  # [rows, tokens]
        distances = [
            ((ours.float() - theirs.float()).square().mean(2) * real).sum() / real.sum()
            for ours, theirs in zip(got.hidden_states[1:], want.hidden_states[1:], strict=True)
        ]
        return divergence + recipe.hidden * torch.stack(distances).mean()

    teacher.eval()
    _train(model, rows, recipe, seed, after_step, loss, pruner, optimizer)


def _train(
    model: nn.Module,
    rows: Rows,
    recipe: Recipe,
    seed: int,
    after_step: Report,
    loss: Callable[[Tensor, Tensor], Tensor],
    pruner: Pruner | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    torch.manual_seed(seed)
    order = torch.Generator().manual_seed(seed)
    steps = recipe.steps(len(rows))
    optimizer = optimizer or adamw(model, recipe)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _slope(step / steps, recipe.warmup))
    model.train()
    for _, index in zip(range(steps), _endless(rows.ids, recipe.batch, order), strict=False):
        index = index.to(rows.ids.device)
        ids = trimmed(drop_words(rows.ids[index], recipe.word_drop))
        torch.autograd.backward(loss(index, ids))
        if pruner is not None:
            pruner.observe()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if pruner is not None:
            pruner.step()
        schedule.step()
        optimizer.zero_grad()
        after_step()
    model.eval()


def drop_words(ids: Tensor, fraction: float) -> Tensor:
    """Half of the rows without this fraction of their words, closed up: int64 [rows, LENGTH]."""
    if fraction == 0:
        return ids
    drop = torch.rand(ids.shape, device=ids.device) < fraction  # [rows, LENGTH]
    drop &= torch.rand(len(ids), 1, device=ids.device) < 0.5
    for token in SPECIAL_TOKENS:
        drop &= ids != token
    ids = ids.masked_fill(drop, PADDING)
    return ids.gather(1, (ids == PADDING).to(torch.int8).argsort(dim=1, stable=True))


def outputs(model: nn.Module, ids: Tensor, hidden_states: bool = False) -> Any:
    """The model's answer to rows of token ids: logits [rows, 2], and perhaps hidden states [rows, tokens, width].

    On a GPU the products run in bfloat16.
    """
    cast = torch.autocast("cuda", torch.bfloat16) if ids.is_cuda else nullcontext()
    with cast:
        return model(input_ids=ids, attention_mask=(ids != PADDING).long(), output_hidden_states=hidden_states)


@torch.inference_mode()
def accuracy(model: nn.Module, rows: Rows, batch: int = 64, after_batch: Report = lambda: None) -> float:
    """The fraction of rows whose label the model gives."""
    model.eval()
    right = 0
    for index in torch.split(lengths(rows.ids).argsort(stable=True), batch):
        answer = outputs(model, trimmed(rows.ids[index])).logits.argmax(1)  # int64 [rows]
        right += int((answer == rows.labels[index]).sum())
        after_batch()
    return right / len(rows)


def adamw(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The optimizer of all recipes; biases and norms do not decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [parameter for parameter in trained if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, fused=True)


def _slope(progress: float, warmup: float) -> float:
    """The learning rate at a point of the run, as a fraction of the largest."""
    return progress / warmup if progress < warmup else (1 - progress) / (1 - warmup)


def _endless(ids: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    while True:
        yield from batches(ids, size, generator)
