"""What the tests of the HTTP port serve, and a request that is right."""

SOURCE = """
@register.register_method(output_names=["y"])
def same(x):
    return x
@method("y")
def slow(x):
    time.sleep(float(x))
    return x
@method("y")
def mark(x):
    open("mark", "w").close()
    return x
"""
GOOD = b'{"instances":{"x":1}}'
ANSWER = b'{"instances":[{"y":1}]}'
