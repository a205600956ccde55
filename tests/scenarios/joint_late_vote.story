# The votes are sealed when the last child asks to commit: its vote is refused, and what it wrote is
# aborted. The others are committed.
init p~>one
    = 1000/0
    p~>one new -> EMPTY 1000/0
init p~>late
    = 1001/0
    p~>late new -> EMPTY 1001/0
init p~>later
    = 1002/0
    p~>later new -> EMPTY 1002/0
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
send2 p~>late a-0 pear
    = ok
    p~>late EMPTY -> ONGOING 1001/0 [a-0]
    a-0 1: pear 1001/0
add p~>later a-1
    = ok
    p~>later EMPTY -> ONGOING 1002/0 [a-1]
send1 p~>later a-1 plum
    = ok
    a-1 0: plum 1002/0
send2 p b-0 done
    = ok
    p EMPTY -> ONGOING 1003/0 [b-0]
    b-0 0: done 1003/0
end2 p~>late commit
    = PRODUCER_FENCED
    p~>late ONGOING -> PREPARE_ABORT 1001/1 [a-0]
    p~>late PREPARE_ABORT -> COMPLETE_ABORT 1001/1
    a-0 2: marker ABORT 1001/1
end2 p~>late commit 1001/0
    = PRODUCER_FENCED
end1 p~>later commit
    = PRODUCER_FENCED
    p~>later ONGOING -> COMPLETE_ABORT 1002/1
    a-1 1: marker ABORT 1002/1
    a-1 stable 0 -> 2
end1 p~>later commit 1002/0
    = PRODUCER_FENCED
# A child that is open may still write, and be aborted; one that is not may not begin.
init p~>late
    = 1001/2
    p~>late COMPLETE_ABORT -> EMPTY 1001/2
send2 p~>late a-0 again
    = CONCURRENT_TRANSACTIONS
end2 p commit
    = 1003/1
    p ONGOING -> PREPARE_COMMIT 1003/1 [b-0] votes: p~>one 1000/1
    p PREPARE_COMMIT -> COMPLETE_COMMIT 1003/1
    p~>one VOTED -> COMPLETE_COMMIT 1000/1
    a-0 3: marker COMMIT 1000/1
    a-0 stable 0 -> 4
    b-0 1: marker COMMIT 1003/1
    b-0 stable 0 -> 2
read a-0
    = apple
read a-1
    = nothing
read b-0
    = done
