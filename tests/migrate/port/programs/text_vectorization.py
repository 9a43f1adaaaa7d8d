"""Text classification from scratch with TextVectorization, after the Keras example. TensorFlow 2.3."""
import re
import string

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers
from tensorflow.keras.layers.experimental.preprocessing import TextVectorization

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.experimental.TPUStrategy(resolver)

GOOD = ["great", "wonderful", "moving", "brilliant", "funny"]
BAD = ["dull", "awful", "boring", "lifeless", "flat"]
rng = np.random.RandomState(1)


def review(label):
    words = rng.choice(GOOD if label else BAD, 6)
    return "This film, it was<br />" + " and ".join(words) + "!"


labels = rng.randint(0, 2, 200)
texts = [review(label) for label in labels]
batch_size = 32
raw_train_ds = tf.data.Dataset.from_tensor_slices((texts[:120], labels[:120])).batch(batch_size)
raw_val_ds = tf.data.Dataset.from_tensor_slices((texts[120:160], labels[120:160])).batch(batch_size)
raw_test_ds = tf.data.Dataset.from_tensor_slices((texts[160:], labels[160:])).batch(batch_size)

print("Number of batches in raw_train_ds: %d" % tf.data.experimental.cardinality(raw_train_ds))
for text_batch, label_batch in raw_train_ds.take(1):
    for i in range(2):
        print(text_batch.numpy()[i])
        print(label_batch.numpy()[i])


def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped_html = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped_html, "[%s]" % re.escape(string.punctuation), "")


max_features = 200
embedding_dim = 16
sequence_length = 20

vectorize_layer = TextVectorization(
    standardize=custom_standardization,
    max_tokens=max_features,
    output_mode="int",
    output_sequence_length=sequence_length,
)
text_ds = raw_train_ds.map(lambda x, y: x)
vectorize_layer.adapt(text_ds)


def vectorize_text(text, label):
    text = tf.expand_dims(text, -1)
    return vectorize_layer(text), label


train_ds = raw_train_ds.map(vectorize_text)
val_ds = raw_val_ds.map(vectorize_text)
test_ds = raw_test_ds.map(vectorize_text)
train_ds = train_ds.cache().prefetch(buffer_size=10)
val_ds = val_ds.cache().prefetch(buffer_size=10)
test_ds = test_ds.cache().prefetch(buffer_size=10)

with strategy.scope():
    inputs = tf.keras.Input(shape=(None,), dtype="int64")
    x = layers.Embedding(max_features, embedding_dim)(inputs)
    x = layers.Dropout(0.5)(x)
    x = layers.Conv1D(16, 3, padding="same", activation="relu", strides=1)(x)
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dense(16, activation="relu")(x)
    x = layers.Dropout(0.5)(x)
    predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
    model = tf.keras.Model(inputs, predictions)
    model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])

epochs = 2
history = model.fit(train_ds, validation_data=val_ds, epochs=epochs)
loss, accuracy = model.evaluate(test_ds)
print("Accuracy: {:.2f}".format(accuracy))
vocab = vectorize_layer.get_vocabulary()
print(len(vocab), vocab[:5])
sample = vectorize_layer(tf.constant([["this film was brilliant"]]))
print(model.predict(sample))
