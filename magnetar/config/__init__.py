"""Configuration by Kafka's names: declared in tables, read from java properties and flags.

`setting` is what a declaration is made of, `broker` and `topic` are the tables, `properties` the
file syntax, `load` merges the sources into a `BrokerConfig` and says what it did not understand.
"""
