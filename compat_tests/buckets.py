"""Buckets for brokers of a cluster: one S3 server in this process, one prefix for a directory."""

from __future__ import annotations

from functools import cache

import boto3
from moto.server import ThreadedMotoServer

_BUCKET = "brokers"


def bucket_environment(url: str) -> dict[str, str]:
    """Return the environment of nodes for a server of buckets at `url`, which checks no rights."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }


@cache
def prefix_of(directory: str) -> str:
    """Return the place for the objects of a broker that has this directory; empty at first."""
    # The misses count the directories that were asked for: each gets a prefix of its own.
    return f"s3://{_BUCKET}/broker-{prefix_of.cache_info().misses}"


@cache
def server_environment() -> dict[str, str]:
    """Return the environment of nodes for a server of this process, which is started once."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    found = bucket_environment(f"http://{host}:{port}")
    boto3.client(
        "s3",
        endpoint_url=found["AWS_ENDPOINT_URL"],
        region_name=found["AWS_REGION"],
        aws_access_key_id=found["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
    ).create_bucket(Bucket=_BUCKET)
    return found
