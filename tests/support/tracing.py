"""Work of other packages without the tracer that measures coverage, which may double its time."""

import functools
import sys


def untraced(function):
    """The function, run without a tracer: for what calls none of the packages under test."""

    @functools.wraps(function)
    def call(*arguments, **options):
        tracer = sys.gettrace()
        if tracer is None:
            return function(*arguments, **options)
        sys.settrace(None)
        try:
            return function(*arguments, **options)
        finally:
            sys.settrace(tracer)
            _nothing()

    return call


def _nothing():
    """A tracer written in C is set up by the first call that it sees, not by a return."""
