"""The quickstart's tasks: the same files to write, whatever program the policy works in.

python examples/claude-code/tasks.py --out DIR [--seed N]
"""

from __future__ import annotations

import runpy
from pathlib import Path

QUICKSTART = Path(__file__).resolve().parent.parent / "quickstart"

if __name__ == "__main__":
    runpy.run_path(str(QUICKSTART / "tasks.py"), run_name="__main__")
