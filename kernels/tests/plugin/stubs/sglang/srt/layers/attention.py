"""A target that other modules copy."""


def attend(**kwargs):
    return f"stock attention of {kwargs['q']}"


alias = attend
