"""Two tasks of modules of PyTorch: a residual network, and a language model with LoRA.

`representation` has a small residual network with group normalisation as x and a linear
head as y, on Fashion-MNIST. `language` has the weights of four sources of text as x and
a LoRA adapter of a two-layer transformer as y; the validation text is of one source.
"""

import pydoc_data.topics
import sysconfig
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedbilevel import BilevelProblem, LocalExamples, datasets
from fedbilevel.torch import SplitModule, TensorDevices, bilevel_problem

CONTEXT = 32
"""Characters that the language model sees."""
VOCABULARY = 128
SOURCES = ("documentation", "code", "licences", "shuffled")
"""The sources of text; the last one is the first with its characters in random order.

Validation and test text are of the first one.
"""


class Case(NamedTuple):
    """A task with its start and its measure on test examples.

    Attributes:
        problem: upper and lower loss.
        devices: data of the devices.
        x: start of x.
        y: start of y.
        metric: loss and further numbers on test examples, of (x, y).
        upper_rate: step of x that is a large change.
    """

    problem: BilevelProblem
    devices: TensorDevices
    x: Any
    y: Any
    metric: Any
    upper_rate: float


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions with group normalisation, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(4, channels) for _ in range(2)])

    def forward(self, images: Tensor) -> Tensor:
        """Return the images after both convolutions."""
        change = torch.relu(self.norms[0](self.first(images)))
        return torch.relu(images + self.norms[1](self.second(change)))


class ResidualNetwork(nn.Module):  # type: ignore[misc]
    """A residual network on images of 14 × 14 pixels with a linear head."""

    def __init__(self, channels: int, blocks: int, classes: int = 10) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1, stride=2, bias=False),
            *(Residual(channels) for _ in range(blocks)),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(4 * channels, classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes."""
        scores: Tensor = self.head(self.backbone(images))
        return scores


def representation(devices: int, rows: int, channels: int, seed: int) -> Case:
    """Return the task of a backbone on which linear heads are trained.

    Args:
        devices: number of devices.
        rows: training and validation images of each device.
        channels: channels of the network.
        seed: seed of the initial weights and of the split.
    """
    source = datasets.fashion_mnist()
    generator = np.random.default_rng(seed)
    images = [_pooled(table.features) for table in (source.train, source.test)]
    labels = [torch.as_tensor(np.asarray(t.labels)).long() for t in source[:2]]
    order = generator.permutation(len(labels[0]))[: 2 * devices * rows]
    parts = torch.as_tensor(order.reshape(devices, 2, rows))
    held = [
        LocalExamples(*((images[0][part], labels[0][part]) for part in pair))
        for pair in parts
    ]
    torch.manual_seed(seed)
    model = SplitModule(
        ResidualNetwork(channels, blocks=2), upper=["backbone"], lower=["head"]
    )

    def upper_loss(x: Any, y: Any, batch: Any) -> Tensor:
        images, labels = batch
        return cross_entropy(model(x, y, images), labels)

    def lower_loss(x: Any, y: Any, batch: Any) -> Tensor:
        return upper_loss(x, y, batch) + 0.01 * squares(y)

    def metric(x: Any, y: Any) -> dict[str, float]:
        with torch.no_grad():
            scores = model(x, y, images[1])
        right = (scores.argmax(1) == labels[1]).double().mean()
        return {
            "accuracy": float(right),
            "loss": float(cross_entropy(scores, labels[1])),
        }

    problem = bilevel_problem(upper_loss, lower_loss)
    return Case(problem, TensorDevices(held), model.x, model.y, metric, 0.003)


def squares(values: Mapping[str, Tensor]) -> Tensor:
    """Return the sum of the squares of all numbers."""
    return torch.stack([(value**2).sum() for value in values.values()]).sum()


def _pooled(features: Any) -> Tensor:
    pixels = np.asarray(features)[:, : 28 * 28].reshape(-1, 1, 14, 2, 14, 2)
    return torch.as_tensor(pixels.mean((3, 5)), dtype=torch.float32)


class Text(NamedTuple):
    """Pieces of text of several sources.

    Attributes:
        characters: `CONTEXT + 1` characters of each piece.
        source: number of the source of each piece.
    """

    characters: Tensor
    source: Tensor


def language(devices: int, rows: int, steps: int, seed: int) -> Case:
    """Return the task of the weights of sources of text.

    Args:
        devices: number of devices.
        rows: training and validation pieces of each device.
        steps: steps of the training of the transformer before the run.
        seed: seed of the initial weights and of the split.
    """
    from peft import LoraConfig, get_peft_model

    generator = np.random.default_rng(seed)
    texts = read_sources()
    ends = {name: int(0.8 * len(text)) for name, text in texts.items()}
    # The adapter starts from a model of the other sources.
    torch.manual_seed(seed)
    base = transformer()
    known = [texts[name][: ends[name]] for name in ("code", "licences")]
    pretrain(base, known, steps, generator)
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True
    )
    model = SplitModule(get_peft_model(base, config).eval())
    half = ends["documentation"] // 2
    training = {**texts, "documentation": texts["documentation"][:half]}
    training = {name: text[: ends[name]] for name, text in training.items()}
    training["shuffled"] = shuffled(training["documentation"], generator)
    validation = texts["documentation"][half : ends["documentation"]]
    held = []
    for _ in range(devices):
        drawn = [pieces(t, rows // len(SOURCES), generator) for t in training.values()]
        numbers = [torch.full((len(p),), k) for k, p in enumerate(drawn)]
        upper = pieces(validation, rows, generator)
        held.append(
            LocalExamples(
                upper=Text(upper, torch.zeros(len(upper), dtype=torch.long)),
                lower=Text(torch.cat(drawn), torch.cat(numbers)),
            )
        )
    test = pieces(
        texts["documentation"][ends["documentation"] :], 500, np.random.default_rng(0)
    )

    def errors(y: Any, characters: Tensor) -> Tensor:
        """Return the mean error of each piece."""
        scores = model({}, y, input_ids=characters[:, :-1], use_cache=False).logits
        each = cross_entropy(
            scores.transpose(1, 2), characters[:, 1:], reduction="none"
        )
        return each.mean(1)

    def upper_loss(x: Any, y: Any, batch: Any) -> Tensor:
        return errors(y, batch.characters).mean()

    def lower_loss(x: Any, y: Any, batch: Any) -> Tensor:
        weights = len(SOURCES) * torch.softmax(x, 0)[batch.source]
        return (weights * errors(y, batch.characters)).mean() + 1e-3 * squares(y)

    def metric(x: Any, y: Any) -> dict[str, float]:
        with torch.no_grad():
            loss = float(errors(y, test).mean())
        shares = torch.softmax(x, 0).tolist()
        return {"loss": loss, **dict(zip(SOURCES, shares, strict=True))}

    problem = bilevel_problem(upper_loss, lower_loss)
    start = torch.zeros(len(SOURCES))
    return Case(problem, TensorDevices(held), start, model.y, metric, 0.1)


def transformer() -> nn.Module:
    """Return a transformer of two layers for characters, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        # Other kinds of attention have no second derivative on a CPU.
        attn_implementation="eager",
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def pretrain(
    model: nn.Module, texts: Sequence[np.ndarray], steps: int, generator: Any
) -> None:
    """Train a model on texts, by Adam."""
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.cat([pieces(text, 16, generator) for text in texts])
        scores = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = cross_entropy(scores.transpose(1, 2), batch[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def pieces(text: np.ndarray, count: int, generator: Any) -> Tensor:
    """Return pieces of a text at random places."""
    starts = generator.integers(0, len(text) - CONTEXT - 1, count)
    rows = starts[:, None] + np.arange(CONTEXT + 1)
    return torch.as_tensor(text[rows]).long()


def shuffled(text: np.ndarray, generator: Any) -> np.ndarray:
    """Return a text with its characters in random order."""
    order: np.ndarray = generator.permutation(text)
    return order


@cache
def read_sources() -> dict[str, np.ndarray]:
    """Return the text of each source, as numbers of ASCII characters.

    They are the language reference of Python and the code of its library, which every
    installation has, and the licences of Debian's package base-files.
    """
    library = Path(sysconfig.get_path("stdlib"))
    files = {
        "code": sorted(library.glob("[a-h]*.py")),
        "licences": sorted(Path("/usr/share/common-licenses").glob("*")),
    }
    topics: dict[str, str] = pydoc_data.topics.topics
    # Topics repeat each other's lines, which would be in training and test text.
    lines = dict.fromkeys("\n".join(topics.values()).splitlines())
    texts = {"documentation": "\n".join(lines)}
    for name, found in files.items():
        texts[name] = "\n".join(file.read_text(errors="ignore") for file in found)
    numbers = {name: _numbers(text) for name, text in texts.items()}
    return {**numbers, "shuffled": numbers["documentation"]}


def _numbers(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("ascii", "ignore"), np.uint8)
