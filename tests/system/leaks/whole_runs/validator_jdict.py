# Thread: ultralytics/ultralytics#617 "CPU RAM Increasing continuously".
# Pattern: the validator appends a dict per detection to `jdict` for the COCO json; it is made once in
# __init__ and not reset between validations, each 40 steps. No tensors, Python floats only.
# Expected: the append in pred_to_json, holder `jdict`.
import memagent
import torch
from torch import nn


class DetectionValidator:
    def __init__(self, save_json=True):
        self.save_json = save_json
        self.jdict = []
        self.seen = 0

    def __call__(self, model):
        model.eval()
        self.seen = 0
        with torch.inference_mode():
            for index in range(6):
                images = torch.rand(4, 3, 32, 32)
                boxes = model(images).view(4, -1, 6)
                for si, predn in enumerate(boxes):
                    self.seen += 1
                    if self.save_json:
                        self.pred_to_json(predn.sigmoid(), index * 4 + si)
        model.train()
        return self.seen

    def pred_to_json(self, predn, image_id):
        for p in predn.tolist():
            self.jdict.append(  # LEAK any jdict
                {
                    "image_id": image_id,
                    "category_id": int(p[5] * 80),
                    "bbox": [round(x, 3) for x in p[:4]],
                    "score": round(p[4], 5),
                }
            )


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU()
        )
        self.head = nn.Conv2d(32, 3 * 6, 1)

    def forward(self, x):
        return self.head(self.stem(x)).permute(0, 2, 3, 1).reshape(len(x), -1)


class DetectionTrainer:
    def __init__(self):
        self.model = Detector()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.937)
        self.validator = DetectionValidator()

    def train(self, epochs, nb):
        memagent.attach(self.model, self.optimizer)
        for _ in range(epochs):
            for _ in range(nb):
                images = torch.rand(4, 3, 32, 32)
                loss = self.model(images).pow(2).mean()
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.validator(self.model)


DetectionTrainer().train(epochs=36, nb=40)
