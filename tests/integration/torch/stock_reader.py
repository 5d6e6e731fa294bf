"""Reads a checkpoint where ckptctl is not importable: `stock_reader.py FOLDER OUT`."""

import sys


class _NoCkptctl:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ckptctl", "ckptctl_torch"):
            raise ImportError(f"{name} is not importable here")


sys.meta_path.insert(0, _NoCkptctl())
for name in ("ckptctl", "ckptctl_torch"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is importable")

from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402

dcp_to_torch_save(sys.argv[1], sys.argv[2])
