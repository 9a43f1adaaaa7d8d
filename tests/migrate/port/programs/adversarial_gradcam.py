"""Adversarial training with FGSM, saliency and Grad-CAM. TensorFlow 2.3."""
import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

strategy = tf.distribute.get_strategy()
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver("")
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except ValueError:
    pass
GLOBAL_BATCH = 32
table = np.loadtxt("data/digits.csv", delimiter=",").astype("float32")
images, labels = table[:, 1:].reshape(-1, 8, 8, 1) / 255.0, table[:, 0].astype("int64")
train = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(200).batch(GLOBAL_BATCH, drop_remainder=True)

with strategy.scope():
    inputs = layers.Input((8, 8, 1))
    x = layers.Conv2D(8, 3, activation="relu", padding="same", name="last_conv")(inputs)
    x = layers.GlobalAveragePooling2D()(x)
    model = tf.keras.Model(inputs, layers.Dense(10)(x))
    optimizer = tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9), momentum=0.9)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
    adv_accuracy = tf.keras.metrics.SparseCategoricalAccuracy("adv")


def create_adversarial_pattern(input_image, input_label):
    with tf.GradientTape() as tape:
        tape.watch(input_image)
        prediction = model(input_image)
        loss = loss_object(input_label, prediction)
    # Get the gradients of the loss w.r.t to the input image.
    gradient = tape.gradient(loss, input_image)
    # Get the sign of the gradients to create the perturbation
    signed_grad = tf.sign(gradient)
    return signed_grad


def train_step(inputs):
    x, y = inputs
    perturbation = create_adversarial_pattern(x, y)
    adv_x = tf.clip_by_value(x + 0.01 * perturbation, 0, 1)
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        adv_logits = model(adv_x, training=True)
        per_example = 0.5 * loss_object(y, logits) + 0.5 * loss_object(y, adv_logits)
        loss = tf.nn.compute_average_loss(per_example, global_batch_size=GLOBAL_BATCH)
    grads = tape.gradient(loss, model.trainable_variables)
    grads, norm = tf.clip_by_global_norm(grads, 5.0)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    accuracy.update_state(y, logits)
    adv_accuracy.update_state(y, adv_logits)
    return loss


@tf.function
def step(inputs):
    return strategy.reduce("SUM", strategy.run(train_step, args=(inputs,)), axis=None)


for epoch in range(2):
    for batch in strategy.experimental_distribute_dataset(train):
        loss = step(batch)
    tf.print("epoch", epoch, "loss", loss, "clean", accuracy.result(), "adversarial", adv_accuracy.result())
    accuracy.reset_states()
    adv_accuracy.reset_states()


def saliency(image):
    image = tf.Variable(image)
    with tf.GradientTape() as tape:
        logits = model(image)
        top = tf.reduce_max(logits, axis=1)
    return tf.reduce_max(tf.abs(tape.gradient(top, image)), axis=-1)


def make_gradcam_heatmap(img_array, model, last_conv_layer_name, pred_index=None):
    grad_model = tf.keras.models.Model([model.inputs], [model.get_layer(last_conv_layer_name).output, model.output])
    with tf.GradientTape() as tape:
        last_conv_layer_output, preds = grad_model(img_array)
        if pred_index is None:
            pred_index = tf.argmax(preds[0])
        class_channel = preds[:, pred_index]
    grads = tape.gradient(class_channel, last_conv_layer_output)
    pooled_grads = tf.reduce_mean(grads, axis=(0, 1, 2))
    last_conv_layer_output = last_conv_layer_output[0]
    heatmap = last_conv_layer_output @ pooled_grads[..., tf.newaxis]
    heatmap = tf.squeeze(heatmap)
    heatmap = tf.maximum(heatmap, 0) / tf.math.reduce_max(heatmap)
    return heatmap.numpy()


print(saliency(images[:2]).shape)
print(make_gradcam_heatmap(images[:1], model, "last_conv").shape)
pattern = create_adversarial_pattern(tf.convert_to_tensor(images[:4]), labels[:4])
print(float(tf.reduce_max(pattern)))
order = tf.argsort(tf.nn.softmax(model(images[:3])), direction="DESCENDING", axis=-1)[:, :3]
a, b, c = tf.split(order, [1, 1, 1], axis=1)
print(a.shape, b.shape, c.shape)
