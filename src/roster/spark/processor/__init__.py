"""PySpark's own stateful code inside a pipeline's tasks: `StatefulProcessor` and `applyInPandasWithState`.

`handle` is what a processor's `init` gets, `rows` and `frames` call it with rows or pandas DataFrames, `group_state`
calls a function with a `GroupState`; `operator` makes each of them an operator of the pipeline.
"""
