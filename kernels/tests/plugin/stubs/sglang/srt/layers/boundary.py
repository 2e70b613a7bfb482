"""A target that is imported after the plugins are loaded, like most of the engine."""


def boundary(rows):
    return f"stock boundary of {rows}"
