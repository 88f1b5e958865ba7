# Thread: facebookresearch/detectron2 EventStorage.put_image (images are kept until a writer clears them);
# cf. ultralytics#617, mmdetection#5096 on growing RAM.
# Pattern: the storage keeps images for the TensorBoard writer, which calls clear_images(). The trainer
# has the metric printer as its only writer. An image each second step.
# Expected: the append in EventStorage.put_image, holder `_vis_data`.
import collections

import memagent
import torch
from torch import nn

_CURRENT_STORAGE_STACK = []


def get_event_storage():
    return _CURRENT_STORAGE_STACK[-1]


class EventStorage:
    def __init__(self, start_iter=0):
        self._history = collections.defaultdict(lambda: collections.deque(maxlen=20))
        self._latest_scalars = {}
        self._iter = start_iter
        self._vis_data = []

    def put_image(self, img_name, img_tensor):
        self._vis_data.append((img_name, img_tensor, self._iter))  # LEAK any _vis_data

    def put_scalar(self, name, value):
        value = float(value)
        self._history[name].append(value)
        self._latest_scalars[name] = (value, self._iter)

    def clear_images(self):
        self._vis_data = []

    def step(self):
        self._iter += 1

    def __enter__(self):
        _CURRENT_STORAGE_STACK.append(self)
        return self

    def __exit__(self, *exc):
        _CURRENT_STORAGE_STACK.pop()


class CommonMetricPrinter:
    def write(self):
        storage = get_event_storage()
        if storage._iter % 100 == 0:
            print(storage._iter, {k: v[0] for k, v in storage._latest_scalars.items()})


class TensorboardXWriter:
    def write(self):
        storage = get_event_storage()
        for name, image, step in storage._vis_data:
            print(name, image.shape, step)
        storage.clear_images()


class RPN(nn.Module):
    def __init__(self, vis_period=2):
        super().__init__()
        self.vis_period = vis_period
        self.conv = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU()
        )
        self.objectness = nn.Conv2d(16, 3, 1)

    def forward(self, images):
        logits = self.objectness(self.conv(images))
        if self.training:
            storage = get_event_storage()
            if self.vis_period > 0 and storage._iter % self.vis_period == 0:
                self.visualize_training(images, logits)
        return {"loss_rpn_cls": logits.sigmoid().mean()}

    @torch.no_grad()
    def visualize_training(self, images, logits):
        proposals = nn.functional.interpolate(logits[:1].sigmoid(), scale_factor=4)
        vis_img = torch.cat([images[0], proposals[0]], 2)  # ALLOCATES
        get_event_storage().put_image("Left: GT; Right: RPN proposals", vis_img)


class SimpleTrainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.writers = [CommonMetricPrinter()]

    def train(self, max_iter):
        with EventStorage() as storage:
            for _ in range(max_iter):
                self.run_step()
                for writer in self.writers:
                    writer.write()
                storage.step()

    def run_step(self):
        loss_dict = self.model(torch.rand(2, 3, 64, 64))
        losses = sum(loss_dict.values())
        self.optimizer.zero_grad()
        losses.backward()
        get_event_storage().put_scalar("total_loss", losses.detach())
        self.optimizer.step()


if __name__ == "__main__":
    rpn = RPN()
    sgd = torch.optim.SGD(rpn.parameters(), lr=0.01)
    memagent.attach(rpn, sgd)
    SimpleTrainer(rpn, sgd).train(700)
