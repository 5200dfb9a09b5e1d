"""What the traced server of these tests serves."""

TOY = """
def twice(x):
    return x * 2
def add(batch):
    for (x,) in batch:
        yield x + 1
@register.register_method(output_names=["y"])
def staged(x):
    y = register.add_stage(twice, x, outputs_count=1)
    return register.add_stage(add, y, outputs_count=1, batch_size=4)

def wait_for_go(batch):
    for (x,) in batch:
        open(f"waits {x}", "w").close()
        while not os.path.exists(f"go {x}"):
            time.sleep(0.005)
    return [np.int32(len(batch))] * len(batch)
@register.register_method(output_names=["n"])
def wait(x):
    return register.add_stage(wait_for_go, x, outputs_count=1, batch_size=8)

def fail(x):
    raise RuntimeError(f"the secret is {x}")
@register.register_method(output_names=["y"])
def broken(x):
    return register.add_stage(fail, x, outputs_count=1)

def count(n):
    for i in range(int(n)):
        yield i
@register.register_method(output_names=["i"])
def counted(n):
    return register.add_stage(count, n, outputs_count=1)
"""
# Spans of its own, and a call of another servable by the client.
OWN = """
from opentelemetry import trace
from mindspore_serving.client import Client
tracer = trace.get_tracer("own")

def look_up(x):
    with tracer.start_as_current_span("look up") as span:
        span.set_attribute("x", int(x))
    return x
@register.register_method(output_names=["y"])
def each(x):
    return register.add_stage(look_up, x, outputs_count=1)

def look_up_all(batch):
    with tracer.start_as_current_span("look up all"):
        return [x for (x,) in batch]
@register.register_method(output_names=["y"])
def together(x):
    return register.add_stage(look_up_all, x, outputs_count=1, batch_size=4)

def ask(x, address):
    with Client(address, "toy", "staged") as client:
        return int(client.infer({"x": int(x)})[0]["y"][0])
@register.register_method(output_names=["y"])
def asked(x, address):
    return register.add_stage(ask, x, address, outputs_count=1)
"""
