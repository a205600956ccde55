# One transactional id whose client is replaced by a newer one and by an older one again.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
add tx-1 a-0
    = ok
    tx-1 EMPTY -> ONGOING 1000/0 [a-0]
send1 tx-1 a-0 apple
    = ok
    a-0 0: apple 1000/0
end1 tx-1 commit
    = 1000/0
    tx-1 ONGOING -> PREPARE_COMMIT 1000/0 [a-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/0
    a-0 1: marker COMMIT 1000/0
    a-0 stable 0 -> 2
init tx-1
    = 1000/1
    tx-1 COMPLETE_COMMIT -> EMPTY 1000/1
send2 tx-1 a-0 pear
    = ok
    tx-1 EMPTY -> ONGOING 1000/1 [a-0]
    a-0 2: pear 1000/1
end2 tx-1 commit
    = 1000/2
    tx-1 ONGOING -> PREPARE_COMMIT 1000/2 [a-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/2
    a-0 3: marker COMMIT 1000/2
    a-0 stable 2 -> 4
init tx-1
    = 1000/3
    tx-1 COMPLETE_COMMIT -> EMPTY 1000/3
add tx-1 a-0
    = ok
    tx-1 EMPTY -> ONGOING 1000/3 [a-0]
send1 tx-1 a-0 plum
    = ok
    a-0 4: plum 1000/3
end1 tx-1 commit
    = 1000/3
    tx-1 ONGOING -> PREPARE_COMMIT 1000/3 [a-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/3
    a-0 5: marker COMMIT 1000/3
    a-0 stable 4 -> 6
end2 tx-1 commit 1000/1
    = PRODUCER_FENCED
read a-0
    = apple pear plum
