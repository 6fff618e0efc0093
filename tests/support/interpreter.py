"""Triton's interpreter with less work beside the kernels; what they compute stays the same."""

import dataclasses
import inspect

from tracing import untraced


def quicken():
    """Make the interpreter of this process quick, if it is built as the known ones are.

    As it comes it searches Triton's language for builtin functions in every call of a kernel's
    helpers, looks for overflow of integers and then drops what it found, makes a table of types
    for every array; and coverage follows each line of all that.
    """
    try:
        from triton import language
        from triton.runtime import interpreter

        builder = interpreter.interpreter_builder
        if not builder.options.debug:  # nobody hears of an overflow
            builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
        interpreter._get_np_dtype = _once_a_type(interpreter._get_np_dtype)
        languages = (language, language.core)
        interpreter._patch_lang = _once_a_launch(interpreter._patch_lang, languages)
        interpreter._patch_attr = _with_untraced(interpreter._patch_attr)
    except (ImportError, AttributeError, TypeError):
        pass  # slower, nothing else


def _once_a_type(find):
    found = {}

    def look_up(kind):
        name = kind.scalar.name
        if name not in found:
            found[name] = find(kind)
        return found[name]

    return look_up


class _Launch:
    """What a launch has patched; calls within it leave the restoring to it."""

    def __init__(self, scope, patched):
        self.scope, self.patched = scope, patched

    def restore(self):
        self.patched.clear()
        self.scope.restore()


def _once_a_launch(patch_language, languages):
    """Each module of the language is patched when a launch meets it first."""
    patched, known = set(), {}

    def patch(function):
        seen = known.get(function.__module__)
        if seen is None:
            modules = [x for x in function.__globals__.values() if inspect.ismodule(x)]
            seen = {x.__name__ for x in languages if x in modules}
            known[function.__module__] = seen
        if patched and seen <= patched:
            return None
        launch = _Launch(patch_language(function), patched)
        patched.update(seen)
        return launch

    return patch


def _with_untraced(patch_builtin):
    """Builtin functions run without a tracer; the lines of kernels are traced."""

    def patch(owner, name, *others):
        patch_builtin(owner, name, *others)
        setattr(owner, name, untraced(getattr(owner, name)))

    return patch
