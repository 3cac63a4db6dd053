"""One file a workload; the driver runs them in this order."""

from bench.workload import Workload
from bench.workloads import (
    arrays,
    backlog,
    confirmed,
    endings,
    fan_out,
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
    arrays.WORKLOAD,
    *fan_out.WORKLOADS,
    *backlog.WORKLOADS,
    *endings.WORKLOADS,
    groups.WORKLOAD,
    *steadiness.WORKLOADS,
    idle.WORKLOAD,
    neighbours.WORKLOAD,
)
