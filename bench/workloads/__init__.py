"""One file a workload; the driver runs them in this order."""

from bench.workload import Workload
from bench.workloads import (
    backlog,
    confirmed,
    endings,
    executors,
    groups,
    idle,
    latency,
    neighbours,
    pipelined,
    steadiness,
)

WORKLOADS: tuple[Workload, ...] = (
    pipelined.WORKLOAD,
    confirmed.WORKLOAD,
    latency.WORKLOAD,
    *backlog.WORKLOADS,
    *endings.WORKLOADS,
    groups.WORKLOAD,
    *steadiness.WORKLOADS,
    *executors.WORKLOADS,
    idle.WORKLOAD,
    neighbours.WORKLOAD,
)
