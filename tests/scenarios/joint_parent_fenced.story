# A new incarnation of the parent. If the parent is idle, the votes stay. Sealed votes are aborted
# together with the parent's data. So a producer that decides knows which data it decides about.
init p~>one
    = 1000/0
    p~>one new -> EMPTY 1000/0
init p
    = 1001/0
    p new -> EMPTY 1001/0
send2 p~>one a-0 apple
    = ok
    p~>one EMPTY -> ONGOING 1000/0 [a-0]
    a-0 0: apple 1000/0
end2 p~>one commit
    = 1000/1
    p~>one ONGOING -> VOTED 1000/1 [a-0]
init p
    = 1001/1
    p EMPTY -> EMPTY 1001/1
read a-0
    = nothing
send2 p b-0 done
    = ok
    p EMPTY -> ONGOING 1001/1 [b-0]
    b-0 0: done 1001/1
init p
    = 1001/3
    p ONGOING -> PREPARE_ABORT 1001/2 [b-0]
    p~>one VOTED -> PREPARE_ABORT 1000/2 [a-0]
    p PREPARE_ABORT -> COMPLETE_ABORT 1001/2
    p COMPLETE_ABORT -> EMPTY 1001/3
    p~>one PREPARE_ABORT -> COMPLETE_ABORT 1000/2
    a-0 1: marker ABORT 1000/2
    a-0 stable 0 -> 2
    b-0 1: marker ABORT 1001/2
    b-0 stable 0 -> 2
end2 p~>one commit 1000/0
    = PRODUCER_FENCED
end2 p commit 1001/1
    = PRODUCER_FENCED
read a-0
    = nothing
read b-0
    = nothing
