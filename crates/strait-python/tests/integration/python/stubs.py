"""Prints the differences between the type stubs and the package."""

import ast
import importlib.resources
import inspect

import strait

tree = ast.parse(importlib.resources.files(strait).joinpath("__init__.pyi").read_text())
stubs = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
public = {name for name in strait.__all__ if name != "__version__"}
for name in sorted(public ^ stubs.keys()):
    print("only in one:", name)


def arguments(node):
    return [a.arg for a in node.args.posonlyargs + node.args.args], [a.arg for a in node.args.kwonlyargs]


def defaults(node):
    return [ast.literal_eval(default) for default in node.args.kw_defaults if default is not None]


for name in sorted(public & stubs.keys()):
    stub, real = stubs[name], getattr(strait, name)
    assert real.__doc__, name
    if isinstance(stub, ast.ClassDef):
        members = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
        own = {key for key in vars(real) if not key.startswith("__") or key.startswith("__arrow")}
        for member in sorted(own ^ {m for m in members if not m.startswith("__") or m.startswith("__arrow")}):
            print("only in one:", name, member)
        for member in sorted(members):
            if not hasattr(real, member):
                print("not there:", name, member)
    elif name != "frames":
        parameters = inspect.signature(real).parameters.values()
        keywords = [p for p in parameters if p.kind == p.KEYWORD_ONLY]
        positional = [p.name for p in parameters if p.kind != p.KEYWORD_ONLY]
        if (positional, [p.name for p in keywords]) != arguments(stub) or [p.default for p in keywords] != defaults(stub):
            print("other arguments:", name, inspect.signature(real))
