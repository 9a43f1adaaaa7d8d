"""Runs the checks on a mesh of 8 host devices, in float64; prints a JSON of what failed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import keras

import anytpu as tpu
from anytpu.system.cores import Address
from mesh_checks import failures_of
from migrate.low_level.shard_checks import CHECKS

keras.config.set_floatx("float64")
tpu.initialize_system(tpu.TPUClusterResolver.from_address(Address("local", 8)))

print(json.dumps(failures_of(CHECKS)))
