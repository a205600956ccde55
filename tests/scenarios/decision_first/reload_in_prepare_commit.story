# Power is lost right behind the decision. The commit still happens, once, and a client that asks
# again is told so. Under version 1, then under version 2.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
add tx-1 a-0 b-0
    = ok
    tx-1 EMPTY -> ONGOING 1000/0 [a-0 b-0]
send1 tx-1 a-0 apple
    = ok
    a-0 0: apple 1000/0
end1 tx-1 commit ; crash decided
    power lost; start again
    tx-1 ONGOING -> PREPARE_COMMIT 1000/0 [a-0 b-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/0
    a-0 1: marker COMMIT 1000/0
    a-0 stable 0 -> 2
end1 tx-1 commit
    = 1000/0
send2 tx-1 a-0 pear
    = ok
    tx-1 COMPLETE_COMMIT -> ONGOING 1000/0 [a-0]
    a-0 2: pear 1000/0
end2 tx-1 commit ; crash decided
    power lost; start again
    tx-1 ONGOING -> PREPARE_COMMIT 1000/1 [a-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/1
    a-0 3: marker COMMIT 1000/1
    a-0 stable 2 -> 4
end2 tx-1 commit 1000/0
    = 1000/1
read a-0
    = apple pear
