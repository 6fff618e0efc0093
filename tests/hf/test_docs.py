"""The examples of docs/huggingface.md run as they stand."""

import re
from pathlib import Path

import torch

import fracdna

DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    """All in one session, in a folder of their own; greedy bases agree with those of fracdna."""
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "huggingface.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    names = {}
    for block in blocks:
        exec(compile(block, "huggingface.md", "exec"), names)
    shapes = [tuple(map(int, x.split(", "))) for x in re.findall(r"\((2, [\d, ]+)\)", blocks[0])]
    assert shapes == [names["output"].logits.shape, names["output"].hidden_states[-1].shape]
    made = names["tokenizer"].batch_decode(names["made"], skip_special_tokens=True)[0]
    assert f"[{made[16:]!r}]" in capsys.readouterr().out
    assert names["drawn"].shape == (4, 27)
    assert len(list(Path("gdn-hf").glob("model-*"))) > 1
    weights = fracdna.load_model("frac.safetensors").state_dict()
    assert all(torch.equal(weights[n], w) for n, w in names["wrapped"].model.state_dict().items())
