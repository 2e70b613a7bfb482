"""A torch that has, or has not, a card."""

import os

from . import compiler as compiler


class cuda:
    @staticmethod
    def is_available():
        return "STUB_CAPABILITY" in os.environ

    @staticmethod
    def get_device_capability():
        major, minor = os.environ["STUB_CAPABILITY"].split(".")
        return int(major), int(minor)
