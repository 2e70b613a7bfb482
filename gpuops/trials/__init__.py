"""Trials: one change at a time, on a host that ends where it began; and the records that they leave.

`schema` is what a trial file may say, `load` reads one, `steps` makes its orders, `state` keeps what was found so far, `verdict` judges it, and
`record`, `redact`, `markdown` and `replay` are what stays.
"""
