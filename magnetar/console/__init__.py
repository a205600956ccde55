"""The console: what a cluster holds and does, as pages in a browser. A process of its own.

    run         binds the address and serves
    app         which handler answers which address, and what a failure looks like
    guard       which requests get in: Host, Origin, size, and what browsers may do with an answer
    sessions    who asks: logins as Kafka users, CSRF tokens, connections to the cluster
    screens     a handler's result as a page, or as a stream of its changes
    changes     what a form would do, shown and then done; refusals: what a cluster's codes mean
    pages/      one module for each subject: a question to the cluster, and the values that its
                template shows
    templates/, static/    what a browser gets

It imports `magnetar.client` and `wire` alone, so it serves Apache Kafka as well. It may have
several clusters, each with addresses, logins and connections of its own. A page changes nothing;
what changes something is a POST with a token, and absent in read-only mode. Nothing that comes from
the cluster is trusted: every value is escaped, and scripts come from this server's files alone.
"""
