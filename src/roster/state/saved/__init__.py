"""A store's entries as tables by column name, and back; the form in which state is exported and imported.

| module | what |
|---|---|
| `parts` | a store's entries as its parts: one for each kind of entry, and what a user's tables need to be some |
| `plain` | aggregates of each key, also by window and session, and times of first rows |
| `join_sides` | rows of both sides of a join |
| `variables` | variables, timers and initial state of a processor |
| `manifest` | the file that says what an export holds, and the last of several exports |

What follows from other entries is left out of the tables, and made again of them: the ends of sessions, timers by time,
marks of rows that wait for a partner are columns.
"""
