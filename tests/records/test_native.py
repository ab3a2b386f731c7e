"""Signatures of the compiled loops."""

from __future__ import annotations

from importlib import import_module

import pytest

from roster.records import native


@pytest.mark.parametrize("loops", native.ALL, ids=lambda loops: loops.module)
def test_a_signature_has_a_type_for_each_parameter(loops: native.Loops) -> None:
    module = import_module(f"roster.wire.columns.{loops.module}")
    for name, types in loops.signatures.items():
        assert len(types.split()) == getattr(module, name).py_func.__code__.co_argcount, name
