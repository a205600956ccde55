# Power is lost before the decision is durable: the transaction is open as it was, and the client that
# asks again has it committed.
init tx-1
    = 1000/0
    tx-1 new -> EMPTY 1000/0
send2 tx-1 a-0 apple
    = ok
    tx-1 EMPTY -> ONGOING 1000/0 [a-0]
    a-0 0: apple 1000/0
end2 tx-1 commit ; crash undecided
    power lost; start again
read a-0
    = nothing
end2 tx-1 commit
    = 1000/1
    tx-1 ONGOING -> PREPARE_COMMIT 1000/1 [a-0]
    tx-1 PREPARE_COMMIT -> COMPLETE_COMMIT 1000/1
    a-0 1: marker COMMIT 1000/1
    a-0 stable 0 -> 2
read a-0
    = apple
