# The same with aborts, the second with its markers durable too: none is written twice.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
add tx-1 a-0 b-0
    = ok
    tx-1 EMPTY -> ONGOING 1000/0 [a-0 b-0]
send1 tx-1 a-0 apple
    = ok
    a-0 0: apple 1000/0
end1 tx-1 abort ; crash decided
    power lost; start again
    tx-1 ONGOING -> PREPARE_ABORT 1000/0 [a-0 b-0]
    tx-1 PREPARE_ABORT -> COMPLETE_ABORT 1000/0
    a-0 1: marker ABORT 1000/0
    a-0 stable 0 -> 2
end1 tx-1 abort
    = 1000/0
send2 tx-1 a-0 pear
    = ok
    tx-1 COMPLETE_ABORT -> ONGOING 1000/0 [a-0]
    a-0 2: pear 1000/0
end2 tx-1 abort ; crash marked
    power lost; start again
    tx-1 ONGOING -> PREPARE_ABORT 1000/1 [a-0]
    tx-1 PREPARE_ABORT -> COMPLETE_ABORT 1000/1
    a-0 3: marker ABORT 1000/1
    a-0 stable 2 -> 4
end2 tx-1 abort 1000/0
    = 1000/1
read a-0
    = nothing
