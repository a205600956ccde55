# A transaction outlives its timeout: it is aborted at a bumped epoch. Its owner cannot commit it. No
# other producer took over, so under version 2 the owner may abort it to learn the new epoch, and then
# continues.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
send2 tx-1 a-0 late
    = ok
    tx-1 EMPTY -> ONGOING 1000/0 [a-0]
    a-0 0: late 1000/0
wait 59999
wait 1
    tx-1 ONGOING -> PREPARE_ABORT 1000/1 [a-0]
    tx-1 PREPARE_ABORT -> COMPLETE_ABORT 1000/1
    a-0 1: marker ABORT 1000/1
    a-0 stable 0 -> 2
send2 tx-1 a-0 later 1000/0
    = INVALID_PRODUCER_EPOCH
end1 tx-1 abort 1000/0
    = PRODUCER_FENCED
end2 tx-1 commit 1000/0
    = INVALID_TXN_STATE
end2 tx-1 abort 1000/0
    = 1000/1
send2 tx-1 a-0 again
    = ok
    tx-1 COMPLETE_ABORT -> ONGOING 1000/1 [a-0]
    a-0 2: again 1000/1
end2 tx-1 commit
    = 1000/2
    tx-1 ONGOING -> PREPARE_COMMIT 1000/2 [a-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/2
    a-0 3: marker COMMIT 1000/2
    a-0 stable 2 -> 4
read a-0
    = again
