# The broker restarts in every state of a family: the votes, the seal and the decision are what they
# were.
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
restart
end2 p~>one commit
    = 1000/1
    p~>one ONGOING -> VOTED 1000/1 [a-0]
restart
end2 p~>one commit 1000/0
    = 1000/1
add p~>two a-1
    = ok
    p~>two EMPTY -> ONGOING 1001/0 [a-1]
send1 p~>two a-1 pear
    = ok
    a-1 0: pear 1001/0
end1 p~>two commit
    = 1001/0
    p~>two ONGOING -> VOTED 1001/0 [a-1]
send2 p b-0 done
    = ok
    p EMPTY -> ONGOING 1002/0 [b-0]
    b-0 0: done 1002/0
restart
init p~>one
    = CONCURRENT_TRANSACTIONS
# Power is lost before the decision is durable: it is still to be made.
end2 p commit ; crash undecided
    power lost; start again
end1 p~>two commit
    = 1001/0
# Before the markers: they are driven again, those of the votes too.
end2 p commit ; crash decided
    power lost; start again
    p ONGOING -> PREPARE_COMMIT 1002/1 [b-0] votes: p~>one 1000/1 p~>two 1001/0
    p PREPARE_COMMIT -> COMPLETE_COMMIT 1002/1
    p~>one VOTED -> COMPLETE_COMMIT 1000/1
    p~>two VOTED -> COMPLETE_COMMIT 1001/0
    a-0 1: marker COMMIT 1000/1
    a-0 stable 0 -> 2
    a-1 1: marker COMMIT 1001/0
    a-1 stable 0 -> 2
    b-0 1: marker COMMIT 1002/1
    b-0 stable 0 -> 2
end2 p commit 1002/0
    = 1002/1
end2 p~>one commit 1000/0
    = 1000/1
end1 p~>two commit
    = 1001/0
read a-0
    = apple
read a-1
    = pear
# After the markers, before anything says so.
send2 p~>one a-0 more
    = ok
    p~>one COMPLETE_COMMIT -> ONGOING 1000/1 [a-0]
    a-0 2: more 1000/1
end2 p~>one commit
    = 1000/2
    p~>one ONGOING -> VOTED 1000/2 [a-0]
send2 p b-0 done
    = ok
    p COMPLETE_COMMIT -> ONGOING 1002/1 [b-0]
    b-0 2: done 1002/1
end2 p commit ; crash marked
    power lost; start again
    p ONGOING -> PREPARE_COMMIT 1002/2 [b-0] votes: p~>one 1000/2
    p PREPARE_COMMIT -> COMPLETE_COMMIT 1002/2
    p~>one VOTED -> COMPLETE_COMMIT 1000/2
    a-0 3: marker COMMIT 1000/2
    a-0 stable 2 -> 4
    b-0 3: marker COMMIT 1002/2
    b-0 stable 2 -> 4
end2 p commit 1002/1
    = 1002/2
end2 p~>one commit 1000/1
    = 1000/2
read a-0
    = apple more
# The same for an abort.
send2 p~>one a-0 never
    = ok
    p~>one COMPLETE_COMMIT -> ONGOING 1000/2 [a-0]
    a-0 4: never 1000/2
end2 p~>one commit
    = 1000/3
    p~>one ONGOING -> VOTED 1000/3 [a-0]
send2 p b-0 never
    = ok
    p COMPLETE_COMMIT -> ONGOING 1002/2 [b-0]
    b-0 4: never 1002/2
end2 p abort ; crash decided
    power lost; start again
    p ONGOING -> PREPARE_ABORT 1002/3 [b-0]
    p~>one VOTED -> PREPARE_ABORT 1000/4 [a-0]
    p PREPARE_ABORT -> COMPLETE_ABORT 1002/3
    p~>one PREPARE_ABORT -> COMPLETE_ABORT 1000/4
    a-0 5: marker ABORT 1000/4
    a-0 stable 4 -> 6
    b-0 5: marker ABORT 1002/3
    b-0 stable 4 -> 6
end2 p~>one commit 1000/2
    = PRODUCER_FENCED
read a-0
    = apple more
