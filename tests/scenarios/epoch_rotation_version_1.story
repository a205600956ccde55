# Version 1 at its last epoch: the transaction ends as ever; the next InitProducerId gives a fresh
# producer id, also to who asks again because the answer was lost.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
age tx-1 32766
    = 1000/32766
    tx-1 EMPTY -> EMPTY 1000/32766
add tx-1 a-0
    = ok
    tx-1 EMPTY -> ONGOING 1000/32766 [a-0]
send1 tx-1 a-0 apple
    = ok
    a-0 0: apple 1000/32766
end1 tx-1 commit
    = 1000/32766
    tx-1 ONGOING -> COMPLETE_COMMIT 1000/32766
    a-0 1: marker COMMIT 1000/32766
    a-0 stable 0 -> 2
init tx-1 1000/32766
    = 1001/0
    tx-1 COMPLETE_COMMIT -> EMPTY 1001/0
init tx-1 1000/32766
    = 1001/0
add tx-1 a-0
    = ok
    tx-1 EMPTY -> ONGOING 1001/0 [a-0]
send1 tx-1 a-0 pear
    = ok
    a-0 2: pear 1001/0
end1 tx-1 commit
    = 1001/0
    tx-1 ONGOING -> COMPLETE_COMMIT 1001/0
    a-0 3: marker COMMIT 1001/0
    a-0 stable 2 -> 4
read a-0
    = apple pear
