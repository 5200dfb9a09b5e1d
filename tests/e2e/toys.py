"""What the tests of the HTTP port serve, and a request that is right."""

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
