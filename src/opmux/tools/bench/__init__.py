"""`opmux bench`: checks, then times, every provider of an op (opmux, torch, torch.compile, other libraries).

`cases` selects ops and shapes. `providers` lists the libraries that compute them (`native` has torch's own calls).
`measure` checks a call and measures memory and limits. `engine` runs all cases and yields rows; `record` stores them as
JSON, `report` prints them, and `page` draws them as HTML.
"""
