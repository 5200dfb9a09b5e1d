"""Writes net.pdmodel and net.pdiparams here: y = relu(x @ w - 10).  Needs paddlepaddle, which the
tests do not: `FLAGS_enable_pir_api=0 python make_paddle.py`."""

import numpy as np
import paddle
from paddle.base.proto import framework_pb2


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer = paddle.nn.Linear(3, 2)
        self.layer.weight.set_value(np.array([[1, 2], [3, 4], [5, 6]], np.float32))
        self.layer.bias.set_value(np.array([-10, -10], np.float32))

    def forward(self, x):
        return paddle.nn.functional.relu(self.layer(x))


net = Net()
net.eval()
paddle.jit.save(net, "net", input_spec=[paddle.static.InputSpec([None, 3], "float32", "x")])

program = framework_pb2.ProgramDesc()
with open("net.pdmodel", "rb") as file:
    program.ParseFromString(file.read())
for operator in program.blocks[0].ops:
    kept = [one for one in operator.attrs if one.name != "op_callstack"]  # paths of the machine
    del operator.attrs[:]
    operator.attrs.extend(kept)
with open("net.pdmodel", "wb") as file:
    file.write(program.SerializeToString())
