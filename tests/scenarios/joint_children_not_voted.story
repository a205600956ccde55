# The parent commits while a child is still open: the child is aborted and fenced in the batch of the
# decision, so nothing of it can take part in the next one.
init p~>one
    = 1000/0
    p~>one new -> EMPTY 1000/0
init p~>open
    = 1001/0
    p~>open new -> EMPTY 1001/0
init p
    = 1002/0
    p new -> EMPTY 1002/0
send2 p~>one a-0 apple
    = ok
    p~>one EMPTY -> ONGOING 1000/0 [a-0]
    a-0 0: apple 1000/0
end2 p~>one commit
    = 1000/1
    p~>one ONGOING -> VOTED 1000/1 [a-0]
send2 p~>open a-0 pear
    = ok
    p~>open EMPTY -> ONGOING 1001/0 [a-0]
    a-0 1: pear 1001/0
send2 p b-0 done
    = ok
    p EMPTY -> ONGOING 1002/0 [b-0]
    b-0 0: done 1002/0
end2 p commit
    = 1002/1
    p ONGOING -> PREPARE_COMMIT 1002/1 [b-0] votes: p~>one 1000/1
    p~>open ONGOING -> PREPARE_ABORT 1001/1 [a-0]
    p PREPARE_COMMIT -> COMPLETE_COMMIT 1002/1
    p~>one VOTED -> COMPLETE_COMMIT 1000/1
    p~>open PREPARE_ABORT -> COMPLETE_ABORT 1001/1
    a-0 2: marker ABORT 1001/1
    a-0 3: marker COMMIT 1000/1
    a-0 stable 0 -> 4
    b-0 1: marker COMMIT 1002/1
    b-0 stable 0 -> 2
end2 p~>open commit
    = PRODUCER_FENCED
read a-0
    = apple
send2 p~>open a-0 late
    = INVALID_PRODUCER_EPOCH
# The parent's next transaction has no votes: an ordinary transaction.
send2 p b-0 more
    = ok
    p COMPLETE_COMMIT -> ONGOING 1002/1 [b-0]
    b-0 2: more 1002/1
end2 p commit
    = 1002/2
    p ONGOING -> PREPARE_COMMIT 1002/2 [b-0]
    p PREPARE_COMMIT -> COMPLETE_COMMIT 1002/2
    b-0 3: marker COMMIT 1002/2
    b-0 stable 2 -> 4
read b-0
    = done more
