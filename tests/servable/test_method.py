import pytest

from mindspore_serving.core.graph import Method, Stage, StageKind
from mindspore_serving.servable.method import add_stage, register_method


def predict(result, *, inputs="x", names='"y"'):
    """The method `predict`, which returns `result`."""
    return f"""
        @register.register_method({names})
        def predict({inputs}):
            return {result}
    """


def text_of(declare, body):
    with pytest.raises(RuntimeError) as caught:
        declare(body)
    return str(caught.value)


def test_a_method_is_straight_line_stages_over_slots(declare):
    declaration = declare("""
        @register.register_method(output_names=["y"])
        def add(x1, x2):
            x1, x2 = register.add_stage(cast, x1, x2, outputs_count=2)
            y = register.add_stage(model, x1, x2, outputs_count=1)
            return y
    """)
    assert declaration.methods == {
        "add": Method(
            name="add",
            inputs=("x1", "x2"),
            outputs=("y",),
            stages=(
                Stage(StageKind.FUNCTION, "tiny.cast", (0, 1), (2, 3), tag="Function 'tiny.cast'"),
                Stage(StageKind.MODEL, "add.mindir", (2, 3), (4,), tag="Model 'add.mindir'"),
            ),
            returns=(4,),
        )
    }
    assert list(declaration.functions) == ["tiny.cast"]
    assert declaration.functions["tiny.cast"].__name__ == "cast"


def test_a_method_may_return_its_inputs_and_have_no_stage(declare):
    method = declare("""
        @register.register_method(output_names=("b", "a"))
        def swap(x1, x2):
            return [x2, x1]
    """).methods["swap"]
    assert method == Method("swap", ("x1", "x2"), ("b", "a"), (), (1, 0))


def test_a_single_output_name_may_be_a_text(declare):
    declaration = declare("""
        @register.register_method("y")
        def same(x):
            return x
    """)
    assert declaration.methods["same"].outputs == ("y",)


def test_a_method_may_be_declared_not_to_be_run_twice(declare):
    methods = declare("""
        @register.register_method("y", retry=False)
        def once(x):
            return x

        @register.register_method("y")
        def again(x):
            return x
    """).methods
    assert (methods["once"].retry, methods["again"].retry) == (False, True)


def test_the_choice_to_retry_is_true_or_false(declare):
    text = text_of(declare, 'register.register_method("y", retry=1)')
    assert "Parameter 'retry' should be bool" in text


def test_the_decorated_function_is_returned_unchanged(declare):
    declare("""
        @register.register_method("y")
        def same(x):
            return x

        assert same(7) == 7
    """)


def test_loops_and_conditions_run_at_registration(declare):
    method = declare("""
        @register.register_method("y")
        def chain(x):
            for _ in range(3):
                x = register.add_stage(scale, x, outputs_count=1)
            return x if len("ab") == 2 else None
    """).methods["chain"]
    assert [(stage.inputs, stage.outputs) for stage in method.stages] == [
        ((0,), (1,)),
        ((1,), (2,)),
        ((2,), (3,)),
    ]
    assert method.returns == (3,)


def test_a_method_may_call_the_function_of_another(declare):
    methods = declare("""
        @register.register_method("y")
        def inner(x):
            return register.add_stage(scale, x, outputs_count=1)

        @register.register_method("y")
        def outer(x):
            return register.add_stage(scale, inner(x), outputs_count=1)
    """).methods
    assert len(methods["inner"].stages) == 1
    assert len(methods["outer"].stages) == 2


@pytest.mark.parametrize("batch_size", [None, 0, 8])
def test_a_batch_size_is_kept(declare, batch_size):
    method = declare(f"""
        @register.register_method("y")
        def predict(x):
            return register.add_stage(batch, x, outputs_count=1, batch_size={batch_size})
    """).methods["predict"]
    assert method.stages[0].batch_size == batch_size


def test_a_tag_replaces_the_default(declare):
    method = declare("""
        @register.register_method("y")
        def predict(x1, x2):
            y = register.add_stage(model, x1, x2, outputs_count=1, tag="The sum")
            return register.add_stage("argmax_cpp", y, outputs_count=1)
    """).methods["predict"]
    assert [stage.tag for stage in method.stages] == ["The sum", "Function 'argmax_cpp'"]
    assert method.stages[1].kind is StageKind.BUILTIN
    assert method.stages[1].target == "argmax_cpp"


def test_two_functions_of_the_same_name_are_distinct(declare):
    declaration = declare("""
        @register.register_method(["a", "b", "c"])
        def predict(x):
            twice = lambda v: v * 2
            a = register.add_stage(twice, x, outputs_count=1)
            b = register.add_stage(lambda v: v * 3, x, outputs_count=1)
            c = register.add_stage(twice, x, outputs_count=1)
            return a, b, c
    """)
    targets = [stage.target for stage in declaration.methods["predict"].stages]
    assert targets == ["tiny.<lambda>", "tiny.<lambda>#2", "tiny.<lambda>"]
    assert declaration.functions["tiny.<lambda>"](5) == 10
    assert declaration.functions["tiny.<lambda>#2"](5) == 15


@pytest.mark.parametrize(
    ("parameter", "kind"),
    [("*x2", "VAR_POSITIONAL"), ("**x2", "VAR_KEYWORD"), ("*, x2", "KEYWORD_ONLY")],
)
def test_a_method_has_named_inputs_only(declare, parameter, kind):
    text = text_of(
        declare,
        f"""
        @register.register_method("y")
        def add(x1, {parameter}):
            return x1
        """,
    )
    assert f"'add' input x2 cannot be {kind} !" in text


def test_only_a_function_can_be_a_method(declare):
    text = text_of(declare, 'register.register_method("y")(int)')
    assert "A method should be a Python function, but actually <class 'type'>" in text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("1", "Parameter 'output_names' should be str or tuple/list of str"),
        ("[]", "Parameter 'output_names' should not be an empty tuple or list"),
        ("['y', 'y']", "The item value 'y' in parameter 'output_names' should not be repeated"),
        ("['y', 1]", "The item of parameter 'output_names' should be str"),
    ],
)
def test_output_names_are_different_texts(declare, names, text):
    body = f"""
        @register.register_method({names})
        def same(x):
            return x
    """
    assert text in text_of(declare, body)


@pytest.mark.parametrize("returned", ["x, np.ones(2)", "x, 'y'", "x, None"])
def test_only_placeholders_can_be_returned(declare, returned):
    body = predict(returned, names='["y", "z"]')
    expected = (
        "Check failed in method 'predict', Each value returned is a placeholder for data and must "
        "come from the method inputs or the outputs of add_stage"
    )
    assert expected in text_of(declare, body)


def test_a_method_that_returns_nothing_is_refused(declare):
    body = """
        @register.register_method("y")
        def predict(x):
            register.add_stage(scale, x, outputs_count=1)
    """
    assert "Each value returned is a placeholder for data" in text_of(declare, body)


def test_as_many_values_are_returned_as_there_are_names(declare):
    body = predict("x, x")
    assert "Method return output size 2 not match registered 1" in text_of(declare, body)


def test_a_method_is_registered_once(declare):
    body = """
        @register.register_method("y")
        def same(x):
            return x
    """
    assert "Method same has been registered more than once." in text_of(declare, body * 2)


@pytest.mark.parametrize("stage", ["cast", "model"])
def test_stages_take_placeholders_only(declare, stage):
    body = predict(f"register.add_stage({stage}, x, np.ones(2), outputs_count=1)")
    expected = (
        "Check failed in method 'predict', Each value of parameter *args is a placeholder for data "
        "and must come from the method inputs or the outputs of add_stage, but actually <class "
        "'numpy.ndarray'>"
    )
    assert expected in text_of(declare, body)


def test_a_placeholder_of_another_method_is_refused(declare):
    body = """
        kept = []

        @register.register_method("y")
        def first(x):
            kept.append(x)
            return x

        @register.register_method("y")
        def second(x):
            return kept[0]
    """
    assert "Check failed in method 'second', Each value returned" in text_of(declare, body)


@pytest.mark.parametrize("stage", ["len", "np.add", "3", "np.float32", "'a'.join", "print"])
def test_a_stage_is_a_function_or_a_model(declare, stage):
    body = predict(f"register.add_stage({stage}, x, outputs_count=1)")
    expected = (
        "Check failed in method 'predict', the parameter 'stage' of add_stage must be function or "
        "Model returned by declare_model, now is <class "
    )
    assert expected in text_of(declare, body)


def test_a_model_that_is_not_declared_is_no_stage(declare):
    body = predict('register.add_stage(register.Model("other"), x, outputs_count=1)')
    assert "now is Model('other'), which is not declared" in text_of(declare, body)


def test_an_unknown_builtin_is_refused_with_those_that_are_known(declare):
    body = predict('register.add_stage("softmax_cpp", x, outputs_count=1)')
    text = text_of(declare, body)
    assert "Function 'softmax_cpp' is not defined, built-in stages are 'argmax_cpp'" in text


def test_a_builtin_has_its_own_counts(declare):
    body = predict('register.add_stage("argmax_cpp", x, x, outputs_count=1)')
    text = text_of(declare, body)
    assert "'argmax_cpp' has 1 input(s) and 1 output(s), but add_stage was given 2 and 1" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("outputs_count=0", "Parameter 'outputs_count' should be >= 1"),
        ("outputs_count='1'", "Parameter 'outputs_count' should be int"),
        ("outputs_count=1, batch_size=-1", "Parameter 'batch_size' should be >= 0"),
        ("outputs_count=1, batch_size=True", "Parameter 'batch_size' should be int"),
        ("outputs_count=1, tag=''", "Parameter 'tag' should not be empty str"),
        ("outputs_count=1, tag=1", "Parameter 'tag' should be str"),
        ("batch_size=1", "missing 1 required keyword-only argument: 'outputs_count'"),
    ],
)
def test_the_options_of_a_stage_are_checked(declare, options, text):
    body = predict(f"register.add_stage(scale, x, {options})")
    assert text in text_of(declare, body)


def test_the_arity_of_a_function_must_match_its_stage(declare):
    body = predict("register.add_stage(cast, x, outputs_count=1)")
    expected = "function cast input args count 2 not match the count 1 registered in method"
    assert expected in text_of(declare, body)


def test_defaults_and_star_arguments_count_as_python_counts_them(declare):
    declaration = declare("""
        def with_default(a, b=1):
            return a

        def with_star(*values):
            return values[0]

        @register.register_method("y")
        def predict(x):
            y = register.add_stage(with_default, x, outputs_count=1)
            return register.add_stage(with_star, x, y, x, outputs_count=1)
    """)
    assert len(declaration.methods["predict"].stages) == 2


def test_a_batch_function_takes_a_single_argument(declare):
    body = predict(
        "register.add_stage(cast, x1, x2, outputs_count=1, batch_size=4)", inputs="x1, x2"
    )
    expected = "function cast input args count 2 not match the one argument that 'batch_size'"
    assert expected in text_of(declare, body)


TWICE = """
        @register.register_method("y")
        def first(x1, x2):
            return register.add_stage({stage}, x1, outputs_count=1, {options})

        @register.register_method("y")
        def second(x1, x2):
            y = register.add_stage({stage}, {changed})
            return x1
"""


@pytest.mark.parametrize(
    ("changed", "what", "new", "old"),
    [
        ("x1, x2, outputs_count=1, batch_size=4", "inputs", 2, 1),
        ("x1, outputs_count=2, batch_size=4", "outputs", 2, 1),
    ],
)
def test_a_function_has_the_same_counts_everywhere(declare, changed, what, new, old):
    body = TWICE.format(stage="batch", options="batch_size=4", changed=changed)
    assert (
        f"Stage function 'tiny.batch' {what} count {new} not match last registered count {old}, "
        "method name 'second'"
    ) in text_of(declare, body)


@pytest.mark.parametrize(
    ("changed", "what", "new", "old"),
    [
        ("x1, x2, outputs_count=1", "inputs", 2, 1),
        ("x1, outputs_count=3", "outputs", 3, 1),
    ],
)
def test_a_model_has_the_same_counts_everywhere(declare, changed, what, new, old):
    body = TWICE.format(stage="model", options="", changed=changed)
    assert (
        f"RegisterInputOutputInfo failed, {what} count {new} not match old count {old}, model: "
        "add.mindir"
    ) in text_of(declare, body)


def test_counts_are_compared_within_a_method_too(declare):
    body = """
        @register.register_method("y")
        def predict(x1, x2):
            y = register.add_stage(model, x1, x2, outputs_count=1)
            return register.add_stage(model, y, outputs_count=1)
    """
    assert "inputs count 1 not match old count 2" in text_of(declare, body)


def test_a_function_gets_batches_everywhere_or_nowhere(declare):
    body = TWICE.format(stage="scale", options="", changed="x1, outputs_count=1, batch_size=4")
    assert (
        "Failed to add stage function tiny.scale: parameter 'batch_size' in multiple 'add_stage' "
        "should be enabled or disabled consistently"
    ) in text_of(declare, body)


def test_batches_may_differ_in_size(declare):
    body = TWICE.format(
        stage="batch", options="batch_size=4", changed="x1, outputs_count=1, batch_size=0"
    )
    assert len(declare(body).methods) == 2


def test_a_placeholder_cannot_decide_a_condition(declare):
    body = predict("x if x else x")
    assert "a placeholder has no value yet" in text_of(declare, body)


@pytest.mark.parametrize("computed", ["x + 1", "-x", "x.shape", "x[0]", "float(x)", "np.exp(x)"])
def test_a_placeholder_cannot_be_computed_with(declare, computed):
    body = predict(computed)
    text = text_of(declare, body)
    assert "write a function that computes, and pass it to add_stage" in text
    assert "servable_config.py, line 18)" in text


def test_a_decorator_without_parentheses_is_told(declare):
    body = """
        @register.register_method
        def predict(x):
            return x
    """
    assert "@register.register_method(output_names=[...])" in text_of(declare, body)


def test_several_outputs_are_unpacked_as_python_unpacks(declare):
    body = """
        @register.register_method("y")
        def predict(x):
            a, b = register.add_stage(scale, x, outputs_count={count})
            return a
    """
    assert "cannot unpack non-iterable" in text_of(declare, body.format(count=1))
    assert "too many values to unpack (expected 2)" in text_of(declare, body.format(count=3))


def test_stages_belong_in_a_method(declare):
    text = text_of(declare, "register.add_stage(scale, 1, outputs_count=1)")
    assert "'add_stage' may only be called in a function decorated by register_method" in text


def test_outside_a_servable_config_there_is_no_method():
    with pytest.raises(RuntimeError, match=r"Failed to obtain the directory of servable_config"):
        register_method("y")(lambda x: x)
    with pytest.raises(RuntimeError, match="'add_stage' may only be called"):
        add_stage("argmax_cpp", 1, outputs_count=1)
