# KAFKA-17754: an EndTxn delayed past the next begin must not end the next transaction. Version 2
# refuses it by its epoch; so does a batch of the earlier transaction.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
send2 tx-1 a-0 apple
    = ok
    tx-1 EMPTY -> ONGOING 1000/0 [a-0]
    a-0 0: apple 1000/0
end2 tx-1 commit
    = 1000/1
    tx-1 ONGOING -> PREPARE_COMMIT 1000/1 [a-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/1
    a-0 1: marker COMMIT 1000/1
    a-0 stable 0 -> 2
send2 tx-1 a-0 pear
    = ok
    tx-1 COMPLETE_COMMIT -> ONGOING 1000/1 [a-0]
    a-0 2: pear 1000/1
end2 tx-1 commit 1000/0
    = PRODUCER_FENCED
end2 tx-1 abort 1000/0
    = PRODUCER_FENCED
send2 tx-1 a-0 ghost 1000/0
    = INVALID_PRODUCER_EPOCH
add tx-1 b-0 1000/0
    = PRODUCER_FENCED
end2 tx-1 abort
    = 1000/2
    tx-1 ONGOING -> PREPARE_ABORT 1000/2 [a-0]
    tx-1 PREPARE_ABORT -> COMPLETE_ABORT 1000/2
    a-0 3: marker ABORT 1000/2
    a-0 stable 2 -> 4
read a-0
    = apple
