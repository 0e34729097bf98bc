"""An encoding under torchrun for `test_encode.py`: argv is the pictures' folder and the store."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from encoders.small_set import CountingWords, small_set

from meq.encoders.builtin import Patches
from meq.encoders.encode import encode_and_count

if __name__ == "__main__":
    torch.set_num_threads(1)
    pictures, store = Path(sys.argv[1]), Path(sys.argv[2])
    encoders = {"image": Patches(grid=2), "text": CountingWords()}
    encoded = encode_and_count(small_set(pictures), encoders, store=store, on_bad="skip")
    told = {
        "texts": [str(text) for text in encoders["text"].encoded],
        "fingerprint": encoded.data.fingerprint(),
        "new": {name: count.new for name, count in encoded.counts.items()},
        "left out": dict(encoded.left_out),
        "problems": dict(encoded.findings.counts),
    }
    store.with_name(f"told-{os.environ['RANK']}.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()
