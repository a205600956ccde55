# A commit under version 1: partitions are added first, data and markers share the epoch, and
# readers see both partitions when EndTxn has answered. The same EndTxn again is the same answer.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
add tx-1 a-0 b-0
    = ok
    tx-1 EMPTY -> ONGOING 1000/0 [a-0 b-0]
send1 tx-1 a-0 apple
    = ok
    a-0 0: apple 1000/0
send1 tx-1 b-0 pear
    = ok
    b-0 0: pear 1000/0
read a-0
    = nothing
end1 tx-1 commit
    = 1000/0
    tx-1 ONGOING -> PREPARE_COMMIT 1000/0 [a-0 b-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/0
    a-0 1: marker COMMIT 1000/0
    a-0 stable 0 -> 2
    b-0 1: marker COMMIT 1000/0
    b-0 stable 0 -> 2
read a-0
    = apple
end1 tx-1 commit
    = 1000/0
end1 tx-1 abort
    = INVALID_TXN_STATE
