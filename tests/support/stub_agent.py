"""Speaks the two lines that an agent and whoever starts it speak, and nothing else."""

import json
import os
import sys


def main() -> None:
    told = json.loads(sys.stdin.readline())
    assert {"address", "public", "place", "name", "interface", "cpus"} <= told.keys(), told
    if "--fail" in sys.argv:
        sys.exit("this agent was told to fail")
    print("a line that some shell or start-up file has printed")
    versions = {"runnel": "99.0"} if "--other" in sys.argv else {}
    print(json.dumps({"public": f"key of {told['name']}", "cpus": told["cpus"], "devices": ["cpu:0"], **versions}))
    if "--leave" in sys.argv:
        sys.exit("this agent has left")
    # Where and as what it runs, for tests to read.
    seen = {"pid": os.getpid(), "told": told, "cuda": os.environ.get("CUDA_VISIBLE_DEVICES")}
    print(json.dumps(seen), file=sys.stderr)
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
