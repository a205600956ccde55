# The parent aborts: the votes are aborted and their producers fenced, and so is a child that has not
# voted. Who retries its vote, or goes on after it, learns that.
init p~>one
    = 1000/0
    p~>one new -> EMPTY 1000/0
init p~>two
    = 1001/0
    p~>two new -> EMPTY 1001/0
init p~>open
    = 1002/0
    p~>open new -> EMPTY 1002/0
init p
    = 1003/0
    p new -> EMPTY 1003/0
add p~>one a-0
    = ok
    p~>one EMPTY -> ONGOING 1000/0 [a-0]
send1 p~>one a-0 apple
    = ok
    a-0 0: apple 1000/0
end1 p~>one commit
    = 1000/0
    p~>one ONGOING -> VOTED 1000/0 [a-0]
send2 p~>two b-0 pear
    = ok
    p~>two EMPTY -> ONGOING 1001/0 [b-0]
    b-0 0: pear 1001/0
end2 p~>two commit
    = 1001/1
    p~>two ONGOING -> VOTED 1001/1 [b-0]
send2 p~>open b-0 plum
    = ok
    p~>open EMPTY -> ONGOING 1002/0 [b-0]
    b-0 1: plum 1002/0
send2 p a-1 done
    = ok
    p EMPTY -> ONGOING 1003/0 [a-1]
    a-1 0: done 1003/0
end2 p abort
    = 1003/1
    p ONGOING -> PREPARE_ABORT 1003/1 [a-1]
    p~>one VOTED -> PREPARE_ABORT 1000/1 [a-0]
    p~>two VOTED -> PREPARE_ABORT 1001/2 [b-0]
    p~>open ONGOING -> PREPARE_ABORT 1002/1 [b-0]
    p~>one PREPARE_ABORT -> COMPLETE_ABORT 1000/1
    p PREPARE_ABORT -> COMPLETE_ABORT 1003/1
    p~>two PREPARE_ABORT -> COMPLETE_ABORT 1001/2
    p~>open PREPARE_ABORT -> COMPLETE_ABORT 1002/1
    a-0 1: marker ABORT 1000/1
    a-0 stable 0 -> 2
    a-1 1: marker ABORT 1003/1
    a-1 stable 0 -> 2
    b-0 2: marker ABORT 1001/2
    b-0 3: marker ABORT 1002/1
    b-0 stable 0 -> 4
end1 p~>one commit
    = PRODUCER_FENCED
end2 p~>two commit 1001/0
    = PRODUCER_FENCED
send2 p~>two b-0 late
    = INVALID_PRODUCER_EPOCH
end2 p~>open commit
    = PRODUCER_FENCED
read a-0
    = nothing
read b-0
    = nothing
read a-1
    = nothing
init p~>one
    = 1000/2
    p~>one COMPLETE_ABORT -> EMPTY 1000/2
