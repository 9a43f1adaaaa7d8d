"""PyTorch with a plain training loop, eager, on the CPU, set up as its users do for speed.

Images lie channels-last, and numbers too small for float32's normal range count as zero: without that the gradients of
an LSTM over 250 words take ten times as long, as XLA and TensorFlow do it always. The LSTM starts with a forget gate of
one, as Keras's does.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from inputs import BATCH, rows
from worker import Train, serve

torch.manual_seed(0)
torch.set_flush_denormal(True)  # before the first parallel region: its threads inherit it
LAYOUT = torch.contiguous_format if os.environ.get("TORCH_PLAIN_LAYOUT") else torch.channels_last


class Imdb(nn.Module):
    def __init__(self, recurrent: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(15000, 32)
        self.recurrent = recurrent(32, 100, batch_first=True)
        self.last = nn.Linear(100, 1)
        with torch.no_grad():
            for bias in (self.recurrent.bias_ih_l0, self.recurrent.bias_hh_l0):
                bias.zero_()
            if recurrent is nn.LSTM:
                self.recurrent.bias_ih_l0[100:200] = 1

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(self.recurrent(self.embedding(words))[0][:, -1])


class Block(nn.Module):
    def __init__(self, features: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(features, filters, 3, stride, 1)
        self.second = nn.Conv2d(filters, filters, 3, 1, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(filters), nn.BatchNorm2d(filters)])
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(features, filters, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(inner)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """Three convolutions, the first with the stride, as in Keras's ResNet-50; each has a bias."""

    def __init__(self, features: int, filters: int, stride: int, has_projection: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            *normed(features, filters, 1, stride), *normed(filters, filters, 3), *normed(filters, 4 * filters, 1)[:2]
        )
        self.shortcut = nn.Identity()
        if has_projection:
            self.shortcut = nn.Sequential(*normed(features, 4 * filters, 1, stride)[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.inner(x) + self.shortcut(x))


class Decoder(nn.Module):
    """One layer of the GPT: attention of four heads and two dense layers, each behind a norm and added."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(128, 1e-3), nn.LayerNorm(128, 1e-3)])
        self.heads, self.mixed = nn.Linear(128, 3 * 128), nn.Linear(128, 128)
        self.inner, self.outer = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.heads(self.norms[0](x)).view(*x.shape[:2], 3, 4, 32).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mixed(attended.transpose(1, 2).reshape(x.shape))
        return x + self.outer(F.gelu(self.inner(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 128), nn.Embedding(64, 128)
        self.layers = nn.Sequential(*(Decoder() for _ in range(4)), nn.LayerNorm(128, 1e-3), nn.Linear(128, 1000))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(words) + self.places.weight)


def normed(features: int, filters: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(features, filters, kernel, stride, kernel // 2)
    return [convolution, nn.BatchNorm2d(filters), nn.ReLU()]


def mnist() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 256, 3),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256 * 24 * 24, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def cifar10() -> nn.Module:
    blocks, features = [], 16
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(3):
            blocks.append(Block(features, filters, 2 if stage and not block else 1))
            features = filters
    start = [nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*start, *blocks, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(64, 10))


def resnet50() -> nn.Module:
    blocks, features = [], 64
    for stage, (filters, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(count):
            blocks.append(Bottleneck(features, filters, 2 if stage and not block else 1, has_projection=not block))
            features = 4 * filters
    start = [*normed(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*start, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 1000))


def iris(steps: int) -> Train:
    model = nn.Sequential(nn.Linear(5, 256, bias=False), nn.Sigmoid(), nn.Linear(256, 3, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = map(torch.from_numpy, rows("iris", steps))

    def train() -> float:
        for step in range(steps):
            i = step % 100
            loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    return train


def loop(job: str, make: Callable[[], nn.Module], steps: int) -> Train:
    model = make()
    x, y = map(torch.from_numpy, rows(job, steps))
    y = y.float() if job in ("imdb", "gru") else y.long()
    if x.ndim == 4:
        model = model.to(memory_format=LAYOUT)
        x = x.permute(0, 3, 1, 2).contiguous(memory_format=LAYOUT)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    def train() -> float:
        total = right = torch.zeros(())
        for numbers in torch.randperm(len(x)).split(BATCH[job]):
            images, labels = x[numbers], y[numbers]
            out = model(images)
            if job in ("imdb", "gru"):
                loss = F.binary_cross_entropy_with_logits(out[:, 0], labels)
                right = right + ((out[:, 0] > 0) == labels).sum()
            else:
                loss = F.cross_entropy(out.flatten(0, -2), labels.flatten())  # a GPT has a label for each position
                right = right + (out.argmax(-1) == labels).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = total + loss.detach()
        return total.item() / steps

    return train


if __name__ == "__main__":
    makers = {
        "imdb": Imdb,
        "gru": functools.partial(Imdb, nn.GRU),
        "mnist": mnist,
        "cifar10": cifar10,
        "resnet50": resnet50,
        "gpt": Gpt,
    }
    serve({"iris": iris, **{job: functools.partial(loop, job, make) for job, make in makers.items()}})
