"""ResNet50 on CIFAR with tensorflow_datasets. TensorFlow 2.9."""
import tensorflow as tf
import tensorflow_datasets as tfds

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
topology = tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
BATCH = 16 * strategy.num_replicas_in_sync

(train, test), info = tfds.load("cifar10", split=["train", "test"], as_supervised=True, with_info=True)


def preprocess(image, label):
    return tf.image.per_image_standardization(image), label


train = train.map(preprocess).cache().shuffle(1000).repeat().batch(BATCH, drop_remainder=True)
test = test.map(preprocess).batch(BATCH, drop_remainder=True)
with strategy.scope():
    base = tf.keras.applications.MobileNet(weights=None, include_top=False, alpha=0.25, input_shape=(32, 32, 3))
    model = tf.keras.Sequential([base, tf.keras.layers.GlobalAveragePooling2D(), tf.keras.layers.Dense(10)])
    model.compile(
        optimizer=tf.keras.optimizers.experimental.SGD(0.1, momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=5,
        metrics=["accuracy"],
    )
steps = info.splits["train"].num_examples // BATCH
model.fit(train, epochs=2, steps_per_epoch=min(steps, 5), validation_data=test)
