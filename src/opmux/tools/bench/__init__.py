"""`opmux bench`: how fast each way to compute an op is, after a check that it is right.

`cases` selects what is measured, `providers` what computes it (`native` has torch's own calls), `measure` how it is
checked and timed; `engine` runs the lot into rows, `record` keeps them, `report` shows them, `page` draws them.
"""
