# Thread: KamitaniLab/bdpy#72 "Forward Hooks Persist After Destroying FeatureExtractor".
# Pattern: each reconstruction (20 steps) makes an extractor that hooks an encoder which outlives it.
# The hook object keeps the features of the last forward, so each old one keeps its set.
# Expected: register_forward_hook in FeatureExtractor.__init__ (or the making of the extractor),
# holder: `_forward_hooks`, the handle, or the encoder.
import memagent
import torch
from torch import nn


class FeatureExtractorHandle:
    def __init__(self):
        self.outputs = []

    def __call__(self, module, inputs, output):
        self.outputs = [output.clone()]  # ALLOCATES

    def clear(self):
        self.outputs = []


class FeatureExtractor:
    def __init__(self, encoder, layers, detach=False):
        self._encoder = encoder
        self._extractors = {}
        for layer in layers:
            handle = FeatureExtractorHandle()
            self._extractors[layer] = handle
            encoder.get_submodule(layer).register_forward_hook(
                handle
            )  # LEAK any _forward_hooks|hook|Handle|encoder

    def run(self, x):
        self._encoder(x)
        features = {layer: handle.outputs[0] for layer, handle in self._extractors.items()}
        for handle in self._extractors.values():
            handle.clear()
        return features


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 3 * 24 * 24), nn.Tanh()
        )

    def forward(self, z):
        return self.net(z).view(-1, 3, 24, 24)


def reconstruct(target, encoder, generator, optimizer, n_iter=10):
    extractor = FeatureExtractor(encoder, ["0", "2"])
    wanted = {k: v.detach() for k, v in extractor.run(target).items()}
    z = torch.randn(2, 64)
    for _ in range(n_iter):
        features = extractor.run(generator(z))
        loss = sum((features[k] - wanted[k]).pow(2).mean() for k in wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main():
    encoder = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU())
    encoder.requires_grad_(False)
    generator = Generator()
    optimizer = torch.optim.Adam(generator.parameters(), 1e-3)
    memagent.attach(generator, optimizer)
    for _ in range(70):
        reconstruct(torch.rand(2, 3, 24, 24), encoder, generator, optimizer)


if __name__ == "__main__":
    main()
