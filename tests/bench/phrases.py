"""What `phrases` are worth to a student built here: the same order desk with its phrases as tokens, and without.

In: nothing; stores of its own in a temporary folder. Out: a Markdown table, then one line of JSON. The recipe is the
advice bench's healthy desk (`advice.py`), whose rewards and questions do not depend on the phrases.
"""

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from apprentice.tasks.reporting.safe_text import markdown_table
from tests.bench.advice import DESK, ORDERS
from tests.bench.laptop import APPRENTICE


def measured(folder: Path, seed: int, has_phrases: bool) -> dict[str, Any]:
    """A run's row."""
    folder.mkdir()
    text = ORDERS.read_text()
    without = re.sub(r"^    phrases = .*\n", "", text, flags=re.MULTILINE)
    assert without != text
    (folder / "orders.py").write_text(text if has_phrases else without)
    environment = DESK["environment"] | {"path": "orders.py"}
    recipe = DESK | {"environment": environment, "seed": seed, "grpo": "off"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    subprocess.run([str(APPRENTICE), "run", "recipe.yaml"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    [page] = folder.glob("runs/*/report.json")
    report = json.loads(page.read_text())
    sft = report["models"]["sft"]
    return {
        "seed": seed,
        "phrases": has_phrases,
        "right": sft["accuracy"],
        "ci": sft["ci"]["accuracy"],
        "tokens": report["lengths"]["p50"],
        "seconds": round(report["effort"]["seconds"]["SFT"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[71, 72, 73])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        rows = [
            measured(Path(temporary) / f"{seed}-{has_phrases}", seed, has_phrases)
            for seed in given.seeds
            for has_phrases in (True, False)
        ]
    shown = [
        {
            "seed": str(row["seed"]),
            "phrases": "as tokens" if row["phrases"] else "spelt",
            "right": f"{row['right']:.1%} ({row['ci'][0]:.1%} to {row['ci'][1]:.1%})",
            "tokens of a row, median": str(row["tokens"]),
            "SFT": f"{row['seconds']} s",
        }
        for row in rows
    ]
    print(markdown_table(shown))
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
