"""What is written at the head of servables that tests make."""

METHOD = '''
import functools

def method(*outputs):
    """Make a method, with these outputs, of a function alone."""
    def declare(function):
        @register.register_method(output_names=outputs)
        @functools.wraps(function)
        def one_stage(*inputs):
            return register.add_stage(function, *inputs, outputs_count=len(outputs))
        return function
    return declare
'''
