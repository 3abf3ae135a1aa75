"""Train with transformers' Trainer, and change learning rate and clipping from another terminal.

    pip install 'launchhelm-offline[hf]'
    python examples/huggingface.py

While it runs, look at what can be changed, change it, and see `grad_norm` and `learning_rate`:

    launchhelm control latest list
    launchhelm control latest grad_clip max_norm=0.1
    launchhelm control latest checkpoint

The Trainer itself clips to the new limit and writes the checkpoint; a copy of it is in the run.
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import Trainer, TrainingArguments

from launchhelm.torch.hf import LaunchHelmCallback

PAUSE_S = 0.005  # Stands for the work of a real step.


class Regression(torch.nn.Module):
    """A model as the Trainer wants it: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
        )

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(PAUSE_S)
        outputs = self.layers(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15.0, help="about how long to train")
    steps = max(2, int(parser.parse_args().seconds / (PAUSE_S * 1.4)))

    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    rows = [{"inputs": each, "labels": each.sum().unsqueeze(0)} for each in inputs]
    arguments = TrainingArguments(
        output_dir="checkpoints",
        run_name="hf-regression",
        max_steps=steps,
        logging_steps=10,
        save_strategy="no",
        learning_rate=1e-3,
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    )
    callback = LaunchHelmCallback("quickstart")
    Trainer(Regression(), arguments, train_dataset=rows, callbacks=[callback]).train()


if __name__ == "__main__":
    main()
