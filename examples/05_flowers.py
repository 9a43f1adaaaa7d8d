"""Flowers in TFRecords, on a TPU if there is one: the way of the Kaggle competitions of 2020.

python examples/05_flowers.py                      # on small generated records
python examples/05_flowers.py --records FOLDER     # on Kaggle's: FOLDER/tfrecords-jpeg-192x192/train/*.tfrec, ...
python examples/05_flowers.py --smoke              # in seconds
"""

import argparse
import tempfile
from pathlib import Path

import anytpu as tpu  # isort: skip
import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--records", help="Kaggle's folder of TFRecords; without it, small ones are made")
parser.add_argument("--smoke", action="store_true", help="a small network, for a few seconds")
OPTIONS = parser.parse_args()

CLASSES = 104
EPOCHS = 3 if OPTIONS.smoke else 5
BATCH_PER_CORE = 16 if OPTIONS.records else 4

# --- TPU detection: a resolver for what there is, or the strategy of one device

try:
    resolver = tpu.TPUClusterResolver()
except ValueError:
    resolver = None

if resolver:
    tpu.experimental_connect_to_cluster(resolver)
    tpu.initialize_tpu_system(resolver)
    strategy = tpu.TPUStrategy(resolver)
else:
    strategy = tpu.get_strategy()
print("Replicas:", strategy.num_replicas_in_sync)

# --- The data


def make_records(folder):
    """Write records in Kaggle's layout: drawings of 3 to 6 petals, whose number and color depend on the class."""
    random = np.random.default_rng(0)
    row, column = np.mgrid[-1:1:192j, -1:1:192j]
    angle, distance = np.arctan2(row, column), np.hypot(row, column)
    for split, count in (("train", 256), ("val", 64), ("test", 32)):
        examples = []
        for kind in random.integers(0, 5, count):
            petals = distance < 0.7 + 0.3 * np.cos((3 + kind % 4) * (angle + random.uniform(0, 2 * np.pi)))
            color = 125 + 105 * np.cos(2 * np.pi * (kind / 5 + np.arange(3) / 3))
            image = np.where(petals[..., None], color, (10, 50, 20)) + random.integers(0, 16, (192, 192, 1))
            flower = {"image": tpu.pipeline.encode_jpeg(image.astype("uint8")), "id": f"{random.integers(16**9):09x}"}
            examples.append(tpu.pipeline.encode_example({**flower, **({"class": kind} if split != "test" else {})}))
        (folder / split).mkdir()
        tpu.pipeline.write_records(folder / split / f"00-192x192-{count}.tfrec", examples)


if OPTIONS.records is None:
    print("Trained on small flowers that are made here: name Kaggle's folder with --records.")
    OPTIONS.records = tempfile.mkdtemp(prefix="flowers-")
    make_records(Path(OPTIONS.records))
batch_size = BATCH_PER_CORE * strategy.num_replicas_in_sync
training, validation, test = (tpu.pipeline.flowers(OPTIONS.records, split) for split in ("train", "val", "test"))


def normalized(flower):
    return flower["image"].astype("float32") / 255, flower["class"]


training_dataset = training.shuffle().map(normalized).repeat().batch(batch_size)
validation_dataset = validation.map(normalized).batch(batch_size)
steps_per_epoch = max(1, len(training) // batch_size)
print(f"{len(training)} training images, {len(validation)} validation images, {len(test)} test images")

# --- The model, in the scope of the strategy

image_shape = next(iter(training))["image"].shape
with strategy.scope():
    model = keras.Sequential(
        [
            layers.Input(image_shape),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
    )

model.fit(
    training_dataset,
    epochs=EPOCHS,
    steps_per_epoch=steps_per_epoch,
    validation_data=validation_dataset,
    verbose=2,
)

# --- The submission: an id, which is a string and stays on the host, and a class

names = [flower["id"] for flower in test]
images = test.map(lambda flower: flower["image"].astype("float32") / 255).batch(batch_size)
classes = np.argmax(model.predict(images, verbose=0), axis=-1)
print("id,label")
for name, label in list(zip(names, classes, strict=True))[:3]:
    print(f"{name},{label}")
