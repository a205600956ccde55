# Two children and their parent write, one in version 1, the others in version 2. The commits of the
# children are votes, which no reader sees. One decision names the votes, and all data is visible at
# once.
init p~>one
    = 1000/0
    p~>one new -> EMPTY 1000/0
init p~>two
    = 1001/0
    p~>two new -> EMPTY 1001/0
init p
    = 1002/0
    p new -> EMPTY 1002/0
add p~>one a-0
    = ok
    p~>one EMPTY -> ONGOING 1000/0 [a-0]
send1 p~>one a-0 apple
    = ok
    a-0 0: apple 1000/0
end1 p~>one commit
    = 1000/0
    p~>one ONGOING -> VOTED 1000/0 [a-0]
end1 p~>one commit
    = 1000/0
send2 p~>two b-0 pear
    = ok
    p~>two EMPTY -> ONGOING 1001/0 [b-0]
    b-0 0: pear 1001/0
end2 p~>two commit
    = 1001/1
    p~>two ONGOING -> VOTED 1001/1 [b-0]
end2 p~>two commit 1001/0
    = 1001/1
add p~>one a-0
    = CONCURRENT_TRANSACTIONS
read a-0
    = nothing
# The parent's first operation seals: no child begins, votes or withdraws.
send2 p a-1 done
    = ok
    p EMPTY -> ONGOING 1002/0 [a-1]
    a-1 0: done 1002/0
init p~>one
    = CONCURRENT_TRANSACTIONS
end2 p commit
    = 1002/1
    p ONGOING -> PREPARE_COMMIT 1002/1 [a-1] votes: p~>one 1000/0 p~>two 1001/1
    p PREPARE_COMMIT -> COMPLETE_COMMIT 1002/1
    p~>one VOTED -> COMPLETE_COMMIT 1000/0
    p~>two VOTED -> COMPLETE_COMMIT 1001/1
    a-0 1: marker COMMIT 1000/0
    a-0 stable 0 -> 2
    a-1 1: marker COMMIT 1002/1
    a-1 stable 0 -> 2
    b-0 1: marker COMMIT 1001/1
    b-0 stable 0 -> 2
read a-0
    = apple
read b-0
    = pear
read a-1
    = done
# The votes are answered as they were; the children go on.
end1 p~>one commit
    = 1000/0
end2 p~>two commit 1001/0
    = 1001/1
add p~>one a-0
    = ok
    p~>one COMPLETE_COMMIT -> ONGOING 1000/0 [a-0]
send2 p~>two b-0 plum
    = ok
    p~>two COMPLETE_COMMIT -> ONGOING 1001/1 [b-0]
    b-0 2: plum 1001/1
