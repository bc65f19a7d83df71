"""Runs the jobs of pack_docs.toml, kills the command after its first finished job, and runs it again.

    python docs/examples/kill_and_resume.py

The kill is a SIGKILL: the command cannot notice it, let alone tidy up. The second run goes on where the first was
killed and does not repeat what had finished.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "run-demo"
COMMAND = (
    *(sys.executable, "-m", "durable_queue", "run", "docs/examples/pack_docs.toml"),
    *("--db", f"{RESULTS}/pack_docs.db", "--jobs", "1"),
)


def main() -> int:
    """Run, kill, run again.

    Returns:
        The exit status of the second run.
    """
    shutil.rmtree(ROOT / RESULTS, ignore_errors=True)
    print(f"$ python {' '.join(COMMAND[1:])}", flush=True)
    with subprocess.Popen(COMMAND, cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for line in first.stdout:
            print(line, end="", flush=True)
            if " completed " in line:
                first.kill()
                break
    print(f"Killed.\n\n$ python {' '.join(COMMAND[1:])}", flush=True)
    return subprocess.run(COMMAND, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
