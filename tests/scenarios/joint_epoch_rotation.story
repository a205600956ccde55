# Votes at the last epoch of a producer id. A commit rotates to the producer id in the vote's answer.
# An abort rotates to another producer id, which no client knows.
init p~>one
    = 1000/0
    p~>one new -> EMPTY 1000/0
init p
    = 1001/0
    p new -> EMPTY 1001/0
age p~>one 32766
    = 1000/32766
    p~>one EMPTY -> EMPTY 1000/32766
send2 p~>one a-0 apple
    = ok
    p~>one EMPTY -> ONGOING 1000/32766 [a-0]
    a-0 0: apple 1000/32766
end2 p~>one commit
    = 1002/0
    p~>one ONGOING -> VOTED 1000/32767, then 1002/0 [a-0]
send2 p~>one a-0 soon
    = CONCURRENT_TRANSACTIONS
send2 p b-0 done
    = ok
    p EMPTY -> ONGOING 1001/0 [b-0]
    b-0 0: done 1001/0
end2 p commit
    = 1001/1
    p ONGOING -> PREPARE_COMMIT 1001/1 [b-0] votes: p~>one 1000/32767
    p PREPARE_COMMIT -> COMPLETE_COMMIT 1001/1
    p~>one VOTED -> COMPLETE_COMMIT 1002/0
    a-0 1: marker COMMIT 1000/32767
    a-0 stable 0 -> 2
    b-0 1: marker COMMIT 1001/1
    b-0 stable 0 -> 2
send2 p~>one a-0 pear
    = ok
    p~>one COMPLETE_COMMIT -> ONGOING 1002/0 [a-0]
    a-0 2: pear 1002/0
age p~>one 32766
    = 1002/32766
    p~>one ONGOING -> ONGOING 1002/32766 [a-0]
end2 p~>one commit
    = 1003/0
    p~>one ONGOING -> VOTED 1002/32767, then 1003/0 [a-0]
send2 p b-0 more
    = ok
    p COMPLETE_COMMIT -> ONGOING 1001/1 [b-0]
    b-0 2: more 1001/1
end2 p abort
    = 1001/2
    p ONGOING -> PREPARE_ABORT 1001/2 [b-0]
    p~>one VOTED -> PREPARE_ABORT 1002/32767, then 1004/0 [a-0]
    p PREPARE_ABORT -> COMPLETE_ABORT 1001/2
    p~>one PREPARE_ABORT -> COMPLETE_ABORT 1004/0
    a-0 3: marker ABORT 1002/32767
    a-0 stable 2 -> 4
    b-0 3: marker ABORT 1001/2
    b-0 stable 2 -> 4
send2 p~>one a-0 late
    = INVALID_PRODUCER_ID_MAPPING
end2 p~>one commit 1002/32766
    = INVALID_PRODUCER_ID_MAPPING
age p~>one 32766
    = 1004/32766
    p~>one COMPLETE_ABORT -> COMPLETE_ABORT 1004/32766
add p~>one a-0
    = ok
    p~>one COMPLETE_ABORT -> ONGOING 1004/32766 [a-0]
send1 p~>one a-0 plum
    = ok
    a-0 4: plum 1004/32766
end1 p~>one commit
    = 1004/32766
    p~>one ONGOING -> VOTED 1004/32766 [a-0]
init p~>one
    = 1005/1
    p~>one VOTED -> COMPLETE_ABORT 1005/0
    p~>one COMPLETE_ABORT -> EMPTY 1005/1
    a-0 5: marker ABORT 1004/32767
    a-0 stable 4 -> 6
read a-0
    = apple
