"""The fundamental frequency of each frame of a mel spectrogram."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engines.cosyvoice.config import VocoderConfig
from server.engines.cosyvoice.vocoder.layers import Conv, Derived, Exact, weights

Layer = tuple[Tensor, Tensor]


class Classifier(nn.Module):
    """The last layer's weights."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = weights(1, inputs), weights(1)


class F0Predictor(Exact, Derived[tuple[list[Layer], Layer]]):
    """Five convolutions and a line: `[B, mels, n]` to Hz `[B, n]`.

    Version 2 sees 5 frames to either side and works in fp32. Version 3 sees 8 frames before and 3 after, and works in
    fp64: the phase of its source is a sum over all frames. A cast to a shorter type does not touch its weights.
    """

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.causal = config.version == 3
        channels = config.f0_channels
        layers: list[nn.Module] = []
        for number in range(5):
            first = number == 0
            layers += [Conv(config.mels if first else channels, channels, 4 if first and self.causal else 3), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = Classifier(channels)
        self.before, self.after = (8, 3) if self.causal else (5, 5)

    def derive(self) -> tuple[list[Layer], Layer]:
        """Weights and biases of the convolutions, and those of the last layer, in the type that it works in. Those of
        version 3 as matrices `[outputs, kernel * inputs]`.
        """
        dtype = torch.float64 if self.causal else torch.float32
        convs = []
        for layer in self.condnet:
            if isinstance(layer, Conv):
                weight = layer.weight.to(dtype)
                convs.append((weight.transpose(1, 2).flatten(1) if self.causal else weight, layer.bias.to(dtype)))
        return convs, (self.classifier.weight.to(dtype), self.classifier.bias.to(dtype))

    def forward(self, mel: Tensor) -> Tensor:
        """Hz, not negative, fp64 for version 3. Beyond either end there are zeros: f0 is that of the whole for the
        frames that are `before` and `after` frames away from where `mel` was cut.
        """
        convs, (weight, bias) = self.derived
        x = mel.to(weight.dtype)
        for number, (kernel, offset) in enumerate(convs):
            if self.causal:
                x = _causal(functional.pad(x, (0, 3) if number == 0 else (2, 0)), kernel, offset, x.shape[2])
            else:
                x = functional.conv1d(x, kernel, offset, padding=1)
            x = functional.elu(x, inplace=True)
        return functional.linear(x.transpose(1, 2), weight, bias)[..., 0].abs_()


def _causal(x: Tensor, kernel: Tensor, offset: Tensor, length: int) -> Tensor:
    """A convolution as one product: in fp64 several times as fast as torch's own on a CPU."""
    shifted = torch.cat([x[:, :, late : late + length] for late in range(x.shape[2] - length + 1)], 1)
    return torch.matmul(kernel, shifted).add_(offset[:, None])
