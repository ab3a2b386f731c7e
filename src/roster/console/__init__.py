"""A consumer group over time: snapshots go in, rows and events come out.

`snapshot` holds what one look at a group found, `history` turns a sequence of looks into events, rates and owners,
`rows` lays the present out for a view, `looking` takes the looks through `roster.client`. All but `looking` is pure:
time comes in with the snapshots.
"""
