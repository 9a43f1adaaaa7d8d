"""Cases from MLPerf training: times between the marks of the logs that were submitted.

Rule: where a block of steps holds one evaluation that the log does not take apart, the step time is an upper bound, and
the arithmetic says so.
"""

from __future__ import annotations

import jax.numpy as jnp

from plan_cases.bert import Bert
from plan_cases.case import Case
from plan_cases.optimizers import lars
from plan_cases.resnet import ResNet

CASES = (
    Case(
        name="resnet50_v2-8",
        family="resnet50_tf1_sgd",
        kind="step",
        target="v2-8",
        measured_s=1145.5 / 5004,
        arithmetic="1145.5 s from eval_stop to eval_start, the mean of 80 gaps of 5 runs, over 4 epochs of 1251 steps",
        source="mlcommons/training_results_v0.5 v0.5.0/google/cloud_v2.8/resnet-tpuv2-8/results",
        trust="A",
        build=ResNet(batch=1024, replicas=8).build,
        steps_per_execution=1251,
        stack="TF 1.12, 2018",
    ),
    Case(
        name="resnet50_v3-32",
        family="resnet50_tf1_lars",
        kind="step",
        target="v3-32",
        measured_s=164.12 / 1252,
        arithmetic="164.12 s a block of 4 epochs (1252 steps) with one evaluation: the median of 66 blocks",
        source="mlcommons/training_results_v0.6 Google/results/tpu-v3-32/resnet",
        trust="A",
        build=ResNet(batch=4096, replicas=32, optimizer=lars(), norm_group=4, l2=0.0).build,
        steps_per_execution=1252,
        stack="TF 1.14, 2019",
        differs="the block holds an evaluation of 50,000 images, some 1 % of it",
    ),
    Case(
        name="resnet50_v4-16",
        family="resnet50_tf1_lars",
        kind="step",
        target="v4-16:cores",
        measured_s=184.18 / 2502,
        arithmetic="184.18 s a block of 4 epochs (2502 steps) with one evaluation: the median of 50 blocks",
        source="mlcommons/training_results_v0.7 Google tpu-v4-16-TF/resnet",
        trust="A",
        build=ResNet(batch=2048, replicas=16, optimizer=lars(), norm_group=1, is_space_to_depth=True, l2=0.0).build,
        steps_per_execution=2502,
        stack="TF 2 nightly, 2020",
        differs="the block holds an evaluation of 50,000 images, some 1 % of it",
    ),
    Case(
        name="resnet50_v3-32_tf2",
        family="resnet50_tf2_lars",
        kind="step",
        target="v3-32",
        measured_s=157.279 / 1252,
        arithmetic="157.279 s from block_start to eval_start, the median of 45 blocks, over 4 epochs of 313 steps",
        source="mlcommons/training_results_v0.7 Google/results/tpu-v3-32-TF2.0/resnet",
        trust="A",
        build=ResNet(batch=4096, replicas=32, optimizer=lars(), norm_group=1, l2=0.0).build,
        steps_per_execution=313,
        stack="TF 2 nightly, 2020",
    ),
    Case(
        name="resnet50_v4-128",
        family="resnet50_tf1_lars",
        kind="step",
        target="v4-128",
        measured_s=24.445 / 625,
        arithmetic="24.445 s a block of 4 epochs (625 steps) with one evaluation: the median of 56 blocks",
        source="mlcommons/training_results_v0.7 Google tpu-v4-128-TF/resnet",
        trust="A",
        build=ResNet(batch=8192, replicas=64, optimizer=lars(), is_space_to_depth=True, l2=0.0).build,
        steps_per_execution=625,
        stack="TF 2 nightly, 2020",
        differs="the block holds an evaluation of 50,000 images, some 2 % of it",
    ),
    Case(
        name="bert_large_v3-32",
        family="bert_tf2",
        kind="step",
        target="v3-32",
        measured_s=514.417 / 1117,
        arithmetic="514.417 s a block of 1117 steps without an evaluation: the median of 65 blocks",
        source="mlcommons/training_results_v0.7 Google/results/tpu-v3-32-TF2.0/bert",
        trust="A",
        build=Bert(batch=448, replicas=32).build,
        steps_per_execution=1117,
        stack="TF 2 nightly, 2020",
    ),
    Case(
        name="bert_large_v4-16",
        family="bert_tf1",
        kind="step",
        target="v4-16:cores",
        measured_s=455.63 / 1953,
        arithmetic="455.63 s a block of 1953 steps with one evaluation: the median of 60 blocks",
        source="mlcommons/training_results_v0.7 Google tpu-v4-16-TF/bert",
        trust="A",
        build=Bert(batch=256, replicas=16, reduce_dtype=jnp.bfloat16).build,
        steps_per_execution=1953,
        stack="TF 2 nightly, 2020",
        differs="the block holds an evaluation of 10,000 sequences, some 1 % of it",
    ),
    Case(
        name="bert_large_v4-128",
        family="bert_tf1",
        kind="step",
        target="v4-128:cores",
        measured_s=53.928 / 163,
        arithmetic="53.928 s a block of 163 steps with one evaluation: the median of 64 blocks",
        source="mlcommons/training_results_v0.7 Google tpu-v4-128-TF/bert",
        trust="A",
        build=Bert(batch=3072, replicas=128, reduce_dtype=jnp.bfloat16).build,
        steps_per_execution=163,
        stack="TF 2 nightly, 2020",
        differs="the block holds an evaluation of 10,000 sequences, some 1 % of it",
    ),
)
"""Training steps."""
