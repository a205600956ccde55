# The parent does not decide: the vote is aborted after its timeout, and its producer is fenced. A
# child that has not voted has its own timeout. A sealed vote waits as long as its parent.
init p~>one
    = 1000/0
    p~>one new -> EMPTY 1000/0
init p~>open
    = 1001/0
    p~>open new -> EMPTY 1001/0
init p~>sealed
    = 1002/0
    p~>sealed new -> EMPTY 1002/0
init p
    = 1003/0
    p new -> EMPTY 1003/0
send2 p~>one a-0 apple
    = ok
    p~>one EMPTY -> ONGOING 1000/0 [a-0]
    a-0 0: apple 1000/0
end2 p~>one commit
    = 1000/1
    p~>one ONGOING -> VOTED 1000/1 [a-0]
wait 60000
send2 p~>open a-1 plum
    = ok
    p~>open EMPTY -> ONGOING 1001/0 [a-1]
    a-1 0: plum 1001/0
wait 60000
    p~>open ONGOING -> PREPARE_ABORT 1001/1 [a-1]
    p~>open PREPARE_ABORT -> COMPLETE_ABORT 1001/1
    a-1 1: marker ABORT 1001/1
    a-1 stable 0 -> 2
end2 p~>open commit
    = INVALID_TXN_STATE
wait 779999
read a-0
    = nothing
wait 1
    p~>one VOTED -> PREPARE_ABORT 1000/2 [a-0]
    p~>one PREPARE_ABORT -> COMPLETE_ABORT 1000/2
    a-0 1: marker ABORT 1000/2
    a-0 stable 0 -> 2
end2 p~>one commit 1000/0
    = PRODUCER_FENCED
send2 p~>one a-0 late
    = INVALID_PRODUCER_EPOCH
read a-0
    = nothing
send2 p~>sealed a-1 pear
    = ok
    p~>sealed EMPTY -> ONGOING 1002/0 [a-1]
    a-1 2: pear 1002/0
end2 p~>sealed commit
    = 1002/1
    p~>sealed ONGOING -> VOTED 1002/1 [a-1]
wait 870000
send2 p b-0 done
    = ok
    p EMPTY -> ONGOING 1003/0 [b-0]
    b-0 0: done 1003/0
wait 50000
end2 p commit
    = 1003/1
    p ONGOING -> PREPARE_COMMIT 1003/1 [b-0] votes: p~>sealed 1002/1
    p PREPARE_COMMIT -> COMPLETE_COMMIT 1003/1
    p~>sealed VOTED -> COMPLETE_COMMIT 1002/1
    a-1 3: marker COMMIT 1002/1
    a-1 stable 2 -> 4
    b-0 1: marker COMMIT 1003/1
    b-0 stable 0 -> 2
read a-1
    = pear
# An unused child is forgotten before its parent.
wait 3600000
    p~>open COMPLETE_ABORT -> forgotten
    p~>one COMPLETE_ABORT -> forgotten
    p~>sealed COMPLETE_COMMIT -> forgotten
