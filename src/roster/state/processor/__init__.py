"""State that user code keeps for each key: variables with schemas, time to live, timers.

| module | content |
|---|---|
| `codec` | a row of a schema as bytes |
| `variables` | names, numbers and schemas of a store's variables, and values of earlier schemas |
| `overlay` | a snapshot and the changes made to it |
| `states` | value, list and map of the current key, by the method names of PySpark |
| `timers` | the timers of each key |
| `batch` | a batch's rows, key by key, and the timers that are due |
| `results` | the rows that a user's code returned, checked against their schema |

Keys of the store:

    0x01 key                        the key's timers, ascending
    0x02 time key                   a timer, in the order of time
    0x03 key                        the key has taken its initial state
    variable key [key in the map]   a variable's value; the variable's number is one byte, 0x10 to 0xef

"""
