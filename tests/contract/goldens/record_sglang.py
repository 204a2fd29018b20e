"""Record the real SGLang's answers into tests/contract/goldens/sglang/.

    make sglang; python tests/contract/goldens/record_sglang.py

One file a case. Paths of this machine and machine-dependent numbers are kept out: a model's
path becomes MODEL_0 or MODEL_1.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from gyre.testkit.engine_cases import play, shorten
from gyre.testkit.engine_server import running_engine
from gyre.testkit.tiny_model import make_two_tiny_models

OUT = Path(__file__).parent / "sglang"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        models = make_two_tiny_models(root)
        with running_engine("sglang", models, root / "log") as engine:
            records = asyncio.run(play(engine.url, models))
    OUT.mkdir(parents=True, exist_ok=True)
    for name, record in records.items():
        text = json.dumps(shorten(record), indent=1, sort_keys=True)
        for index, model in enumerate(models):
            text = text.replace(str(model), f"MODEL_{index}")
        (OUT / f"{name}.json").write_text(text + "\n")
    print(f"{len(records)} cases in {OUT}")


if __name__ == "__main__":
    main()
