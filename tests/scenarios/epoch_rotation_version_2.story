# Version 2 at its last epoch: the marker carries 32767, which no client gets, and EndTxn answers a
# fresh producer id. The decision's record keeps this id, so a retry after a crash gets the same one.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
age tx-1 32766
    = 1000/32766
    tx-1 EMPTY -> EMPTY 1000/32766
send2 tx-1 a-0 apple
    = ok
    tx-1 EMPTY -> ONGOING 1000/32766 [a-0]
    a-0 0: apple 1000/32766
end2 tx-1 commit ; crash decided
    power lost; start again
    tx-1 ONGOING -> PREPARE_COMMIT 1000/32767, then 1001/0 [a-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1001/0
    a-0 1: marker COMMIT 1000/32767
    a-0 stable 0 -> 2
end2 tx-1 commit 1000/32766
    = 1001/0
end2 tx-1 abort 1000/32766
    = INVALID_TXN_STATE
send2 tx-1 a-0 pear
    = ok
    tx-1 COMPLETE_COMMIT -> ONGOING 1001/0 [a-0]
    a-0 2: pear 1001/0
end2 tx-1 commit 1000/32766
    = INVALID_PRODUCER_ID_MAPPING
send2 tx-1 a-0 ghost 1000/32766
    = INVALID_PRODUCER_ID_MAPPING
end2 tx-1 commit
    = 1001/1
    tx-1 ONGOING -> PREPARE_COMMIT 1001/1 [a-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1001/1
    a-0 3: marker COMMIT 1001/1
    a-0 stable 2 -> 4
read a-0
    = apple pear
