"""Answers about the network: switches, and what jobs have of them."""

from __future__ import annotations

from plait.live.service.http.answers.base import Answer


class Region(Answer):
    """A part of the memory of a switch, in aggregators."""

    offset: int
    size: int
    """0: all that regions of one job leave."""
    mode: str
    exclusive: bool


class JobAggregation(Answer):
    """The switch of a job and its use. Shares are 0 to 1, and null where nothing is known."""

    granted: bool
    switch: str | None
    region: Region | None
    epoch: int | None
    """Of the region."""
    protocol: str | None
    window: int | None
    """Packets that a worker may have outstanding."""
    priority: int | None
    mode_used: str | None
    """aggregation or gloo; null before it exchanged anything."""
    bits_per_s: float | None
    """Gradients that a worker exchanged, bits per second."""
    aggregated_share: float | None
    """Fraction of sums that the switch completed."""
    fallback_share: float | None
    """Fraction of packets that met an occupied aggregator."""
    gloo_share: float | None
    """Fraction of bytes that went by gloo."""
    resend_share: float | None
    """Fraction of packets that were sent again."""
    timeouts: float | None
    reason: str
    """Why it is not aggregated; empty if it is."""


class SwitchJob(Region):
    """A job that a switch serves, and what the switch has counted of it."""

    id: str
    number: int
    serves: bool
    held: float
    """Aggregators in use now."""
    received: float
    """Packets of workers."""
    collided: float
    """The ones of these that met another job's aggregator."""
    completed: float
    """Sums that were completed."""


class Switch(Answer):
    """A switch that can aggregate."""

    switch: str
    state: str
    """up, lost, or not served."""
    node: str | None
    """The node whose agent serves it."""
    aggregators: int
    payload_bytes: int
    """Bytes of gradients in a packet."""
    granted: int
    """Aggregators in regions of one job."""
    held: float
    """Aggregators in use now."""
    restarts: int
    trouble: str | None
    jobs: list[SwitchJob]


class NetworkJob(JobAggregation):
    """A running job that could be aggregated."""

    id: str
    number: int


class NetworkOfCluster(Answer):
    """The network, its switches, and what jobs have of them."""

    network: str | None
    """The text of its topology; null without a network."""
    policy: str
    grants: bool
    """Whether the policy grants memory of switches."""
    switches: list[Switch]
    jobs: list[NetworkJob]
