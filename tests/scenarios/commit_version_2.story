# The same under version 2: data adds its partition, the end bumps the epoch, and its marker carries
# the new one. The retry names the old epoch and is answered the same.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
send2 tx-1 a-0 apple
    = ok
    tx-1 EMPTY -> ONGOING 1000/0 [a-0]
    a-0 0: apple 1000/0
send2 tx-1 b-0 pear
    = ok
    tx-1 ONGOING -> ONGOING 1000/0 [a-0 b-0]
    b-0 0: pear 1000/0
read a-0
    = nothing
end2 tx-1 commit
    = 1000/1
    tx-1 ONGOING -> PREPARE_COMMIT 1000/1 [a-0 b-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/1
    a-0 1: marker COMMIT 1000/1
    a-0 stable 0 -> 2
    b-0 1: marker COMMIT 1000/1
    b-0 stable 0 -> 2
read a-0
    = apple
end2 tx-1 commit 1000/0
    = 1000/1
end2 tx-1 abort 1000/0
    = INVALID_TXN_STATE
