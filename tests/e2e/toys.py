"""What the tests serve: at the HTTP port, with a request that is right, and a method alone."""

SOURCE = """
@register.register_method(output_names=["y"])
def same(x):
    return x
def nap(x):
    time.sleep(float(x))
    return x
@register.register_method(output_names=["y"])
def slow(x):
    return register.add_stage(nap, x, outputs_count=1)
def leave_mark(x):
    open("mark", "w").close()
    return x
@register.register_method(output_names=["y"])
def mark(x):
    return register.add_stage(leave_mark, x, outputs_count=1)
"""
GOOD = b'{"instances":{"x":1}}'
ANSWER = b'{"instances":[{"y":1}]}'
DOUBLE = """
def twice(x):
    return x * 2
@register.register_method(output_names=["y"])
def double(x):
    return register.add_stage(twice, x, outputs_count=1)
"""
