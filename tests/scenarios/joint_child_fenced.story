# A new incarnation of a child takes the child's vote back if the vote is not sealed yet. The parent
# then commits without the child. A sealed vote stays.
init p~>one
    = 1000/0
    p~>one new -> EMPTY 1000/0
init p~>two
    = 1001/0
    p~>two new -> EMPTY 1001/0
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
send2 p~>two a-0 pear
    = ok
    p~>two EMPTY -> ONGOING 1001/0 [a-0]
    a-0 1: pear 1001/0
end2 p~>two commit
    = 1001/1
    p~>two ONGOING -> VOTED 1001/1 [a-0]
init p~>one
    = 1000/3
    p~>one VOTED -> PREPARE_ABORT 1000/2 [a-0]
    p~>one PREPARE_ABORT -> COMPLETE_ABORT 1000/2
    p~>one COMPLETE_ABORT -> EMPTY 1000/3
    a-0 2: marker ABORT 1000/2
    a-0 stable 0 -> 1
end2 p~>one commit 1000/0
    = PRODUCER_FENCED
end2 p~>one commit 1000/1
    = PRODUCER_FENCED
send2 p b-0 done
    = ok
    p EMPTY -> ONGOING 1002/0 [b-0]
    b-0 0: done 1002/0
init p~>two
    = CONCURRENT_TRANSACTIONS
end2 p commit
    = 1002/1
    p ONGOING -> PREPARE_COMMIT 1002/1 [b-0] votes: p~>two 1001/1
    p PREPARE_COMMIT -> COMPLETE_COMMIT 1002/1
    p~>two VOTED -> COMPLETE_COMMIT 1001/1
    a-0 3: marker COMMIT 1001/1
    a-0 stable 1 -> 4
    b-0 1: marker COMMIT 1002/1
    b-0 stable 0 -> 2
init p~>two
    = 1001/2
    p~>two COMPLETE_COMMIT -> EMPTY 1001/2
read a-0
    = pear
read b-0
    = done
