"""Runs checks on a mesh of 8 host devices and on 3 virtual cores, in float64; prints a JSON of what failed.

The arguments name the checks: "local/CHECK" or "virtual/CHECK".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras

import anytpu as tpu
from anytpu.system.cores import Address
from mesh_checks import failures_of
from strategy.loop_checks import LOOP_CHECKS
from strategy.replica_checks import CHECKS

keras.config.set_floatx("float64")
SYSTEMS = {"local": Address("local", 8), "virtual": Address("virtual", 3)}

failures = {}
for kind, address in SYSTEMS.items():
    strategy = tpu.TPUStrategy(tpu.TPUClusterResolver.from_address(address))
    names = [word.partition("/")[2] for word in sys.argv[1:] if word.startswith(f"{kind}/")]
    failed = failures_of({name: {**CHECKS, **LOOP_CHECKS}[name] for name in names}, strategy)
    failures |= {f"{kind}/{name}": traceback for name, traceback in failed.items()}
print(json.dumps(failures))
