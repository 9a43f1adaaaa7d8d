#!/usr/bin/env python3
"""Simulate the control traffic of a job of many hosts: its agreement, its exchanges, its heartbeats, its saves.

The rendezvous is one server with a queue: it handles one request after the other. The hosts are clients that arrive
with a random delay. An all-reduce of a few integers is a tree of messages. The costs of one request, one message and
one delay are arguments; the defaults are measured with two and three hosts on one machine
(docs/decisions/0030-many-hosts.md).

    scripts/simulate_hosts.py [--hosts 2,8,64,256] [--request-us 150] [--hop-us 60] [--delay-us 200]

Standard library only.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random

_REPEATS = 200


def exchange_s(hosts: int, hop_s: float, delay_s: float, rng: random.Random) -> float:
    """Return the time of one agreement: the last host's delay, then a tree up and a tree down."""
    last_s = max(rng.expovariate(1 / delay_s) for _ in range(hosts))
    return last_s + 2 * math.ceil(math.log2(hosts)) * hop_s


def gather_s(hosts: int, request_s: float, value_s: float, delay_s: float, rng: random.Random) -> float:
    """Return the time until every host has the values of all: set, barrier, and a read of `hosts` values.

    The events are (time, host, stage). A host sends its next request when the server has answered the last. The answer
    of a barrier comes when all hosts have reached it.
    """
    events = [(rng.expovariate(1 / delay_s), host, "set") for host in range(hosts)]
    heapq.heapify(events)
    free_s, waiting, ended_s = 0.0, [], 0.0
    while events:
        time_s, host, stage = heapq.heappop(events)
        cost_s = request_s + (hosts * value_s if stage == "read" else 0.0)
        free_s = max(free_s, time_s) + cost_s
        if stage == "set":
            heapq.heappush(events, (free_s, host, "barrier"))
        elif stage == "barrier":
            waiting.append(host)
            if len(waiting) == hosts:
                for each in waiting:
                    heapq.heappush(events, (free_s, each, "read"))
        else:
            ended_s = free_s
    return ended_s


def heartbeat_load(hosts: int, request_s: float) -> float:
    """Return the share of the rendezvous's time that heartbeats take: one each way for each host every 2 s."""
    return hosts * request_s / 10 * 2 / 2.0


def main() -> None:
    """Print one row for each number of hosts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="2,8,64,256", help="numbers of hosts (default: 2,8,64,256)")
    parser.add_argument("--request-us", type=float, default=150.0, help="time of one request at the rendezvous")
    parser.add_argument("--value-us", type=float, default=1.0, help="time to send one value of a gather")
    parser.add_argument("--hop-us", type=float, default=60.0, help="time of one message between two hosts")
    parser.add_argument("--delay-us", type=float, default=200.0, help="mean delay of a host")
    parser.add_argument("--state-gb", type=float, default=10.0, help="size of the state that host 0 saves, in GB")
    parser.add_argument("--disk-gb-s", type=float, default=1.0, help="rate of the folder, in GB per second")
    arguments = parser.parse_args()
    rng = random.Random(0)
    request_s, value_s = arguments.request_us * 1e-6, arguments.value_us * 1e-6
    hop_s, delay_s = arguments.hop_us * 1e-6, arguments.delay_us * 1e-6
    save_s = arguments.state_gb / arguments.disk_gb_s
    print("hosts | agreement ms | of a turn of 250 ms | gather ms | heartbeats | save by host 0 alone s")
    for hosts in map(int, arguments.hosts.split(",")):
        agreement_s = sum(exchange_s(hosts, hop_s, delay_s, rng) for _ in range(_REPEATS)) / _REPEATS
        gathered_s = sum(gather_s(hosts, request_s, value_s, delay_s, rng) for _ in range(20)) / 20
        print(
            f"{hosts:5} | {agreement_s * 1e3:12.2f} | {agreement_s / 0.25:19.1%} | {gathered_s * 1e3:9.1f} | "
            f"{heartbeat_load(hosts, request_s):10.2%} | {save_s:.0f}"
        )


if __name__ == "__main__":
    main()
