"""`opmux bench`: checks, then times, every provider of an op (opmux, torch, torch.compile, other libraries).

`cases` selects ops and shapes, `providers` lists who computes them (`native` has torch's own calls), and `measure`
checks and times a call. `engine` runs all cases and yields rows; `record` stores them as JSON, `report` prints them,
and `page` draws them as HTML.
"""
