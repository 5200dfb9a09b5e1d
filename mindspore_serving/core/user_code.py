"""Lines of the user's Python files in errors."""

import os
import traceback


def where(error: BaseException, directory: str) -> str:
    """Return the innermost line of the files in `directory` on the way to `error`; "" if none is.

    It begins with a comma: ", FILE, line N".
    """
    if isinstance(error, SyntaxError) and (error.filename or "").startswith(directory + os.sep):
        return f", {error.filename}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(directory + os.sep):
            return f", {frame.filename}, line {frame.lineno}"
    return ""
