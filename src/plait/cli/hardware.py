"""The cluster that an option names: a short text such as `16x8@4`, or a file in TOML; and its network."""

from plait.core.cluster import Cluster
from plait.core.errors import InputError


def read_cluster(text: str, network: str | None = None) -> Cluster:
    """The cluster of `--cluster`, with the network of `--network` if one is given.

    A text that ends in `.toml` names a file. Raises `InputError` for an unreadable text, and for a network in addition
    to a file that has one.
    """
    if not text.lower().endswith(".toml"):
        cluster = Cluster.parse(text)
    else:
        from plait.network.topology.cluster_file import file_text, read_cluster_file

        cluster = read_cluster_file(file_text(text), text)
    if network is not None and cluster.network is not None:
        raise InputError(f"{text} has a network ({cluster.network}); leave out --network, or [network] in the file")
    return with_network(cluster, network)


def with_network(cluster: Cluster, network: str | None) -> Cluster:
    """The cluster with the network of `--network`, if one is given."""
    if network is None:
        return cluster
    from plait.network.topology.read import networked

    return networked(cluster, network)
