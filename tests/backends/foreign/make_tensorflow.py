"""Writes saved/, net.tflite and frozen.pb here: y = relu(x @ w - 10).  Needs tensorflow-cpu, which
the tests do not: `python make_tensorflow.py`."""

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2


class Net(tf.Module):
    def __init__(self):
        super().__init__()
        self.w = tf.Variable(np.array([[1, 2], [3, 4], [5, 6]], np.float32), name="w")

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def __call__(self, x):
        return {"y": tf.nn.relu(tf.matmul(x, self.w) - 10.0)}


net = Net()
tf.saved_model.save(net, "saved", signatures=net.__call__)
function = net.__call__.get_concrete_function()
with open("net.tflite", "wb") as file:
    file.write(tf.lite.TFLiteConverter.from_concrete_functions([function], net).convert())
frozen = convert_variables_to_constants_v2(function)
tf.io.write_graph(frozen.graph, ".", "frozen.pb", as_text=False)
