#!/usr/bin/env python3
"""Runs a command under mpirun on hosts that are network namespaces of this machine, joined by a link of a given kind.

    sudo python3 bench/pipeline/hosts.py --link 10gbe [--hosts 2] [--mpirun "FLAGS"] -- COMMAND...

Kinds: loopback (a virtual wire as it comes), 10gbe and 1gbe (rate by tc's token bucket), wifi (300 Mbit/s and 5 ms in
each direction, by a relay of packets in this process: not every kernel has tc's netem). Every host has an interface, a
host name and one slot of its own; all share processor and memory, so that only processor time and bytes on the wire
compare. Needs root, iproute2 and Open MPI. Prints on standard error, as JSON, the bytes that each host has sent. Exit status:
that of mpirun; 2: it could not be set up.
"""

import argparse
import contextlib
import ctypes
import fcntl
import heapq
import json
import os
import pathlib
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

LINKS = {"loopback": None, "10gbe": ("10gbit", "256kb"), "1gbe": ("1gbit", "32kb"), "wifi": None}  # tc: rate, burst
WIFI_BYTES_A_SECOND = 300e6 / 8
WIFI_DELAY = 5e-3  # seconds, one way
AGENT = """#!/bin/sh
# In place of ssh: the first argument is the host, the rest is for a shell there.
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"hosts: ip {' '.join(arguments)}: {done.stderr.strip() or done.returncode}")


class Relay:
    """A wire with a rate and a delay: every host sends into a TUN device, whose packets come out at the other host's."""

    def __init__(self, hosts):
        self.files = [self.open_in(host) for host in hosts]
        threading.Thread(target=self.run, daemon=True).start()

    def open_in(self, host):
        # A device belongs to the namespace of the thread that makes it.
        with open("/proc/self/ns/net") as home, open(f"/run/netns/{host}") as there:
            self.enter(there)
            try:
                device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                set_interface, tun_without_header = 0x400454CA, 0x1001
                fcntl.ioctl(device, set_interface, struct.pack("16sH", b"wire", tun_without_header))
            finally:
                self.enter(home)
        return device

    @staticmethod
    def enter(namespace):
        network = 0x40000000  # CLONE_NEWNET; Python has os.setns from 3.12 on
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), network) != 0:
            sys.exit(f"hosts: {namespace.name}: {os.strerror(ctypes.get_errno())}")

    def run(self):
        free = dict.fromkeys(self.files, 0.0)  # when the sender's wire is free again
        waiting = []                           # (time of arrival, number, to, packet)
        number = 0
        while True:
            left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            readable, _, _ = select.select(self.files, [], [], left)
            for device in readable:
                packet = os.read(device, 65536)
                other = self.files[1 - self.files.index(device)]
                free[device] = max(free[device], time.monotonic()) + len(packet) / WIFI_BYTES_A_SECOND
                heapq.heappush(waiting, (free[device] + WIFI_DELAY, number, other, packet))
                number += 1
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):  # an interface that is down loses its packets
                    os.write(to, packet)


def join(hosts, link):
    """Interface "wire" in every host, with the addresses 10.77.0.1, 10.77.0.2, ..."""
    if link == "wifi":
        relay = Relay(hosts)
    else:
        relay = None
        ip("-n", hosts[0], "link", "add", "bridge", "type", "bridge")
        ip("-n", hosts[0], "link", "set", "bridge", "up")
        for number, host in enumerate(hosts):
            ip("-n", host, "link", "add", "wire", "type", "veth", "peer", "name", f"port{number}", "netns", hosts[0])
            ip("-n", hosts[0], "link", "set", f"port{number}", "master", "bridge", "up")
    for number, host in enumerate(hosts):
        ip("-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "wire")
        ip("-n", host, "link", "set", "wire", "up")
        ip("-n", host, "link", "set", "lo", "up")
        if LINKS[link]:
            limit = subprocess.run(["ip", "netns", "exec", host, "tc", "qdisc", "replace", "dev", "wire", "root", "tbf",
                                    "rate", LINKS[link][0], "burst", LINKS[link][1], "latency", "50ms"],
                                   capture_output=True, text=True, check=False)
            if limit.returncode != 0:
                sys.exit(f"hosts: tc: {limit.stderr.strip()}")
    return relay


def sent_bytes(host):
    shown = subprocess.run(["ip", "-n", host, "-s", "-j", "link", "show", "dev", "wire"], capture_output=True, text=True,
                           check=True)
    return json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", choices=LINKS, required=True)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--mpirun", default="", help="more flags of mpirun")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    if not 2 <= arguments.hosts <= 16 or (arguments.link == "wifi" and arguments.hosts != 2):
        parser.error(f"--hosts: {arguments.hosts} of a {arguments.link} link; allowed: 2 to 16, wifi joins 2")
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("mpirun"):
        sys.exit("hosts: needs root, iproute2 and Open MPI's mpirun")
    hosts = [f"headwater{number}" for number in range(arguments.hosts)]
    made = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    try:
        for host in hosts:
            ip("netns", "add", host)
            made.append(host)
        relay = join(hosts, arguments.link)
        with tempfile.TemporaryDirectory() as folder:
            agent = pathlib.Path(folder) / "agent"
            agent.write_text(AGENT)
            agent.chmod(0o755)
            names = "".join(f"10.77.0.{number + 1} {host}\n" for number, host in enumerate(hosts))
            for host in hosts:
                target = pathlib.Path("/etc/netns") / host
                target.mkdir(parents=True, exist_ok=True)
                (target / "hosts").write_text("127.0.0.1 localhost\n" + names)
            network = "--mca btl tcp,self --mca btl_tcp_if_include wire --mca oob_tcp_if_include wire"
            command = ["ip", "netns", "exec", hosts[0], "unshare", "--uts", "sh", "-c", f'hostname {hosts[0]}; exec "$@"', "sh",
                       "mpirun", "-np", str(len(hosts)), "--host", ",".join(hosts), "--map-by", "node", "--bind-to", "none",
                       "--mca", "plm_rsh_agent", str(agent), *network.split(), *arguments.mpirun.split(), *arguments.command]
            environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            before = [sent_bytes(host) for host in hosts]
            status = subprocess.run(command, env=environment, check=False).returncode
            sent = [sent_bytes(host) - start for host, start in zip(hosts, before)]
            print(json.dumps({"link": arguments.link, "sent_bytes": sent}), file=sys.stderr)
        del relay
        return status
    finally:
        for host in made:
            subprocess.run(["ip", "netns", "del", host], check=False)
            shutil.rmtree(pathlib.Path("/etc/netns") / host, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
