"""Train with Lightning's Trainer, and change learning rate and clipping from another terminal.

    pip install 'launchhelm-offline[lightning]'
    python examples/lightning_trainer.py

While it runs, look at what can be changed, change it, and follow what the module logs:

    launchhelm control latest list
    launchhelm control latest grad_clip max_norm=0.1
    launchhelm control latest lr scale=0.5
    launchhelm tail latest

The Trainer was told of no clipping; from the step of the command on it clips to 0.1.
"""

from __future__ import annotations

import argparse
import time

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from launchhelm.torch.lightning import LaunchHelmCallback

PAUSE_S = 0.005  # Stands for the work of a real step.


class Regression(LightningModule):
    """Logs its loss as any module does; the callback picks it up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        time.sleep(PAUSE_S)
        inputs, labels = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), labels)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15.0, help="about how long to train")
    steps = max(2, int(parser.parse_args().seconds / (PAUSE_S * 1.4)))

    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    callback = LaunchHelmCallback("quickstart", name="lightning-regression")
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        callbacks=[callback],
    )
    trainer.fit(Regression(), DataLoader(data, batch_size=32))


if __name__ == "__main__":
    main()
