"""Rated sentences as rows of token ids: which are for training, validation and test, and batches of similar length."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer

LENGTH = 64  # tokens a row; 1 in 1,000 sentences is longer and is cut
PADDING = 0  # the token id that fills rows up
UNLABELLED = -100  # what torch's cross_entropy ignores
SPLIT_SEED = 20140527
TEST_ROWS, VALIDATION_ROWS = 2000, 1000
OTHERS = ("amazonReviewSnippets", "nytEditorialSnippets", "tweets")  # read without their ratings


@dataclass(frozen=True)
class Rows:
    """ids: int64 [rows, LENGTH], filled up with PADDING. labels: int64 [rows], 1 for praise, 0 for blame."""

    ids: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Tensor | slice) -> "Rows":
        return Rows(self.ids[index], self.labels[index])

    def __add__(self, other: "Rows") -> "Rows":
        return Rows(torch.cat([self.ids, other.ids]), torch.cat([self.labels, other.labels]))

    def to(self, device: str) -> "Rows":
        return Rows(self.ids.to(device), self.labels.to(device))


@dataclass(frozen=True)
class Reviews:
    """test is looked at once, at the end; choices are made on validation. other has no labels."""

    train: Rows
    validation: Rows
    test: Rows
    other: Rows

    def to(self, device: str) -> "Reviews":
        return Reviews(*(part.to(device) for part in (self.train, self.validation, self.test, self.other)))


def read_reviews(texts: Path, model: Path) -> Reviews:
    """Movie reviews rated above 0.5 or below -0.5, split by a fixed seed, and all the other sentences unlabelled.

    A sentence that occurs twice is kept once, so none is in two parts.
    """
    movie = _distinct(_read(texts, "movieReviewSnippets"))
    rated = [(text, int(rating > 0)) for text, rating in movie if abs(rating) > 0.5]
    labelled = [rated[place] for place in np.random.RandomState(SPLIT_SEED).permutation(len(rated))]
    held_out, train = labelled[: TEST_ROWS + VALIDATION_ROWS], labelled[TEST_ROWS + VALIDATION_ROWS :]
    known = {text.lower() for text, _ in labelled}
    neutral = [row for row in movie if row[0].lower() not in known]
    other = _distinct(
        [*neutral, *(row for name in OTHERS for row in _read(texts, name) if row[0].lower() not in known)]
    )
    tokenizer = AutoTokenizer.from_pretrained(model)

    def encode(rows: list[tuple[str, int]]) -> Rows:
        tokens = tokenizer([text for text, _ in rows], truncation=True, max_length=LENGTH)["input_ids"]
        ids = torch.full((len(rows), LENGTH), PADDING)
        for row, row_tokens in zip(ids, tokens, strict=True):
            row[: len(row_tokens)] = torch.tensor(row_tokens)
        return Rows(ids, torch.tensor([label for _, label in rows]))

    return Reviews(
        train=encode(train),
        validation=encode(held_out[TEST_ROWS:]),
        test=encode(held_out[:TEST_ROWS]),
        other=encode([(text, UNLABELLED) for text, _ in other]),
    )


def lengths(ids: Tensor) -> Tensor:
    """Tokens of each row without its padding: int64 [rows]."""
    return (ids != PADDING).sum(1)


def trimmed(ids: Tensor) -> Tensor:
    """The rows without the columns that are padding in all of them: [rows, at most LENGTH]."""
    return ids[:, : int(lengths(ids).max())]


def batches(ids: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers, int64 [size], of one pass in random order; the rows of a batch have similar lengths.

    The last rows that fill no batch are left out, others each time.
    """
    if len(ids) < size:
        raise ValueError(f"there are {len(ids)} rows; a batch takes {size}: use more rows or a smaller batch")
    order = torch.randperm(len(ids), generator=generator)
    count = lengths(ids).cpu()
    group = size * 24  # sorted by length inside such a group
    sorted_groups = [part[count[part].argsort(stable=True)] for part in torch.split(order, group)]
    made = [batch for part in sorted_groups for batch in torch.split(part, size) if len(batch) == size]
    for place in torch.randperm(len(made), generator=generator).tolist():
        yield made[place]


def batch_count(rows: int, size: int) -> int:
    """How many batches one pass makes."""
    return rows // size


def _read(texts: Path, name: str) -> list[tuple[str, float]]:
    """(sentence, mean rating) of one file; its lines are number, rating and sentence between tabs."""
    lines = (texts / f"{name}_GroundTruth.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    cells = [line.split("\t") for line in lines]
    return [(row[2].strip(), float(row[1])) for row in cells if len(row) == 3]


def _distinct(rows: list[tuple[str, float]]) -> list[tuple[str, float]]:
    first: dict[str, tuple[str, float]] = {}
    for row in rows:
        first.setdefault(row[0].lower(), row)
    return list(first.values())
