"""Segmentation from TFRecords of raw bytes with a U-Net and k folds, after Kaggle. TensorFlow 2.4."""
import glob
import os
import random

import numpy as np
import tensorflow as tf
from tensorflow.keras import backend as K
from tensorflow.keras.layers import BatchNormalization, Conv2D, Conv2DTranspose, Input, MaxPool2D, concatenate

P = {}
P["EPOCHS"] = 2
P["BACKBONE"] = "none"
P["NFOLDS"] = 2
P["SEED"] = 0
P["VERBOSE"] = 0
P["DIM"] = 16
P["BATCH_COE"] = 2
P["DICE_LOSS"] = True


def seed_everything(seed):
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    tf.random.set_seed(seed)


seed_everything(P["SEED"])
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    print("Running on TPU ", tpu.cluster_spec().as_dict()["worker"])
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except ValueError:
    print("Not connected to a TPU runtime.")
    strategy = tf.distribute.get_strategy()
BATCH_SIZE = P["BATCH_COE"] * strategy.num_replicas_in_sync
print("Number of replicas:", strategy.num_replicas_in_sync, BATCH_SIZE)


def _bytes_feature(value):
    """Returns a bytes_list from a string / byte."""
    if isinstance(value, type(tf.constant(0))):
        value = value.numpy()
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def _int64_feature(value):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def serialize_example(image, image_shape, mask):
    feature = {
        "image": _bytes_feature(image),
        "height": _int64_feature(image_shape[0]),
        "width": _int64_feature(image_shape[1]),
        "num_channels": _int64_feature(image_shape[2]),
        "mask": _bytes_feature(mask),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


os.makedirs("train", exist_ok=True)
for part in range(4):
    opts = tf.io.TFRecordOptions(compression_type="GZIP")
    with tf.io.TFRecordWriter("train/part{}.tfrec".format(part), opts) as writer:
        for index in range(24):
            image = np.random.randint(0, 256, (P["DIM"], P["DIM"], 3), dtype=np.uint8)
            mask = (image[..., 0] > 128).astype(np.uint8)
            writer.write(serialize_example(image.tobytes(), image.shape, mask.tobytes()))


def _parse_image_function(example_proto, augment=True):
    image_feature_description = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "mask": tf.io.FixedLenFeature([], tf.string),
    }
    single_example = tf.io.parse_single_example(example_proto, image_feature_description)
    image = tf.reshape(tf.io.decode_raw(single_example["image"], out_type=np.dtype("uint8")), (P["DIM"], P["DIM"], 3))
    mask = tf.reshape(tf.io.decode_raw(single_example["mask"], out_type="uint8"), (P["DIM"], P["DIM"], 1))
    if augment:
        if tf.random.uniform(()) > 0.5:
            image = tf.image.flip_left_right(image)
            mask = tf.image.flip_left_right(mask)
        if tf.random.uniform(()) > 0.4:
            image = tf.image.flip_up_down(image)
            mask = tf.image.flip_up_down(mask)
        if tf.random.uniform(()) > 0.5:
            image = tf.image.rot90(image, k=1)
            mask = tf.image.rot90(mask, k=1)
        if tf.random.uniform(()) > 0.45:
            image = tf.image.random_saturation(image, 0.7, 1.3)
        if tf.random.uniform(()) > 0.45:
            image = tf.image.random_contrast(image, 0.8, 1.2)
    return tf.cast(image, tf.float32), tf.cast(mask, tf.float32)


def load_dataset(filenames, ordered=False, augment=True):
    AUTO = tf.data.experimental.AUTOTUNE
    ignore_order = tf.data.Options()
    if not ordered:
        ignore_order.experimental_deterministic = False
    dataset = tf.data.TFRecordDataset(filenames, num_parallel_reads=AUTO, compression_type="GZIP")
    dataset = dataset.with_options(ignore_order)
    dataset = dataset.map(lambda ex: _parse_image_function(ex, augment=augment), num_parallel_calls=AUTO)
    return dataset


def get_training_dataset(filenames):
    dataset = load_dataset(filenames)
    dataset = dataset.repeat()
    dataset = dataset.shuffle(128)
    dataset = dataset.batch(BATCH_SIZE, drop_remainder=True)
    return dataset.prefetch(tf.data.experimental.AUTOTUNE)


def get_validation_dataset(filenames, ordered=True):
    dataset = load_dataset(filenames, ordered=ordered, augment=False)
    dataset = dataset.batch(BATCH_SIZE)
    dataset = dataset.cache()
    return dataset.prefetch(tf.data.experimental.AUTOTUNE)


def dice_coe(output, target, axis=None, smooth=1e-10):
    output = tf.dtypes.cast(tf.math.greater(output, 0.5), tf.float32)
    target = tf.dtypes.cast(tf.math.greater(target, 0.5), tf.float32)
    inse = tf.reduce_sum(output * target, axis=axis)
    l = tf.reduce_sum(output, axis=axis)
    r = tf.reduce_sum(target, axis=axis)
    dice = (2.0 * inse + smooth) / (l + r + smooth)
    dice = tf.reduce_mean(dice, name="dice_coe")
    return dice


def tversky(y_true, y_pred, alpha=0.7, beta=0.3, smooth=1):
    y_true_pos = K.flatten(y_true)
    y_pred_pos = K.flatten(y_pred)
    true_pos = K.sum(y_true_pos * y_pred_pos)
    false_neg = K.sum(y_true_pos * (1 - y_pred_pos))
    false_pos = K.sum((1 - y_true_pos) * y_pred_pos)
    return (true_pos + smooth) / (true_pos + alpha * false_neg + beta * false_pos + smooth)


def focal_tversky(y_true, y_pred, gamma=0.75):
    tv = tversky(y_true, y_pred)
    return K.pow((1 - tv), gamma)


def loss(y_true, y_pred):
    return tf.keras.losses.binary_crossentropy(y_true, y_pred, label_smoothing=0.01)[..., None] + focal_tversky(y_true, y_pred)


def bce_dice(y_true, y_pred):
    return 0.5 * tf.keras.losses.BinaryCrossentropy()(y_true, y_pred) + focal_tversky(y_true, y_pred)


def conv_block(x, filters):
    x = Conv2D(filters, 3, padding="same", kernel_initializer="he_normal")(x)
    x = BatchNormalization()(x)
    return tf.nn.relu(x)


def get_model():
    inputs = Input(shape=(P["DIM"], P["DIM"], 3))
    s = tf.keras.layers.Lambda(lambda x: x / 255)(inputs)
    c1 = conv_block(s, 4)
    c2 = conv_block(MaxPool2D((2, 2))(c1), 8)
    c3 = conv_block(MaxPool2D((2, 2))(c2), 8)
    u2 = concatenate([Conv2DTranspose(8, (2, 2), strides=(2, 2), padding="same")(c3), c2])
    c4 = conv_block(u2, 8)
    up = tf.image.resize(c4, tf.shape(c4)[1:3] * 2)
    c5 = conv_block(tf.concat([up, c1], axis=-1), 4)
    outputs = Conv2D(1, (1, 1), activation="sigmoid")(c5)
    return tf.keras.models.Model(inputs=[inputs], outputs=[outputs])


ALL_TRAINING_FILENAMES = np.asarray(sorted(glob.glob("train/*.tfrec")))
M = {}
M["hist"] = []
for fold in range(P["NFOLDS"]):
    val_idx = np.arange(len(ALL_TRAINING_FILENAMES)) % P["NFOLDS"] == fold
    TRAINING_FILENAMES = ALL_TRAINING_FILENAMES[~val_idx]
    VALIDATION_FILENAMES = ALL_TRAINING_FILENAMES[val_idx]
    STEPS_PER_EPOCH = 24 * len(TRAINING_FILENAMES) // BATCH_SIZE
    K.clear_session()
    with strategy.scope():
        model = get_model()
        model.compile(optimizer=tf.keras.optimizers.Adam(lr=0.0005), loss=bce_dice, metrics=[dice_coe, "accuracy"])
    checkpoint = tf.keras.callbacks.ModelCheckpoint("model-fold-%i.h5" % fold, verbose=P["VERBOSE"],
                                                    monitor="val_dice_coe", mode="max", save_best_only=True)
    early_stop = tf.keras.callbacks.EarlyStopping(monitor="val_dice_coe", mode="max", patience=15,
                                                  restore_best_weights=True)
    reduce = tf.keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.25, patience=4, verbose=1,
                                                  min_delta=0.0001, mode="min")
    history = model.fit(get_training_dataset(list(TRAINING_FILENAMES)), epochs=P["EPOCHS"],
                        steps_per_epoch=STEPS_PER_EPOCH, callbacks=[checkpoint, early_stop, reduce],
                        validation_data=get_validation_dataset(list(VALIDATION_FILENAMES)), verbose=P["VERBOSE"])
    model = tf.keras.models.load_model("model-fold-%i.h5" % fold, custom_objects={"bce_dice": bce_dice, "dice_coe": dice_coe})
    M["hist"].append(max(history.history["val_dice_coe"]))
print("mean dice", np.mean(M["hist"]))
