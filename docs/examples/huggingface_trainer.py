"""Focus in a Hugging Face model: a small Llama trained from scratch by ``Trainer``, with top-k attention.

``semfocus.hf.register()`` makes every pattern an attention implementation. The model chooses one by name, and the knobs
are in its config, so they are saved and loaded with it. The text is the source of Python's standard library, byte by
byte; nothing is downloaded.

    pip install 'semfocus[hf]' accelerate
    python docs/examples/huggingface_trainer.py        # about ten seconds on one core
"""

import argparse
import sysconfig
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from semfocus import hf

LENGTH = 64


def standard_library(files: int) -> torch.Tensor:
    """The bytes of the first files of the standard library, as rows of token ids."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:files]
    text = b"\n".join(source.read_bytes() for source in sources)
    tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)


def examples(rows: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in rows]


def main(steps: int, folder: str) -> None:
    hf.register()
    set_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="semfocus_top_k",
        semfocus={"k": 8},
    )
    model = LlamaForCausalLM(config)

    rows = standard_library(files=40)
    held_out, training = rows[:64], rows[64:]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=3e-3,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=examples(training),
        eval_dataset=examples(held_out),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    print(f"held-out loss {before:.2f} -> {after:.2f} nats per byte after {steps} steps")

    # The knobs travel with the config; the implementation is chosen when a model is loaded, as always.
    model.save_pretrained(folder)
    loaded = LlamaForCausalLM.from_pretrained(folder, attn_implementation="semfocus_top_k")
    print(f"loaded with {loaded.config._attn_implementation} {loaded.config.semfocus}")
    prompt = torch.tensor([list(b"import ")])
    written = loaded.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    print(f"it writes {bytes(written[0].tolist())!r}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args().steps, folder)
